// The translation view: type, pause, read; aligned words are highlighted; alternatives for each sentence.

import { translate, translateStream } from "./api.js";
import { decoded, parts, sourcesOf, spans, targetsOf } from "./words.js";

const PAUSE = 350; // milliseconds without a key before translating
const LONG = 2500; // characters; for longer texts, alternatives and alignments are fetched when a sentence is selected
const MAX_FILE = 5e6; // bytes
const RICH = { nbest: 4, alignments: true };
const byId = (id) => document.getElementById(id);
const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

export function startTranslate(limits) {
  const source = byId("source"), output = byId("output"), pane = byId("target-pane");
  let model, sentences = [], count = 0, chosen = -1, running, timer, translated = null, fileName = "";

  const asked = () => ({ model: model.name, source: model.source, target: model.target, terms: terms() });
  const key = (text) => JSON.stringify([asked(), text]);

  // The complete lines, also with a tab, as copied from a table; one that is still being typed does not count.
  function terms() {
    const lines = byId("terms").value.split("\n").map((line) => /^([^=\t]*[^=\s])\s*[=\t]\s*(\S.*)$/.exec(line.trim()));
    return lines.filter(Boolean).map(([, term, text]) => [term, text]);
  }

  // -- translating -----------------------------------------------------------------------------------------------

  async function run() {
    clearTimeout(timer);
    const text = source.value;
    if (key(text) === translated) return;
    running?.abort();
    const own = (running = new AbortController());
    translated = key(text);
    problem("");
    if (!text.trim()) return finish([], 0);
    pane.classList.add("stale");
    say(text.length > LONG ? "Translating…" : "");
    const begun = performance.now();
    const fresh = [];
    let at = 0;
    try {
      for (const part of parts(text, Math.floor(limits.max_characters / 2))) {
        const options = text.length > LONG ? {} : RICH;
        await translateStream({ text: part, ...asked(), ...options }, own.signal, (line) => {
          if (own.signal.aborted || line.text === undefined) return;
          const start = Math.max(text.indexOf(line.source, at), at); // half a character comes back as another one
          at = start + line.source.length;
          fresh.push({ ...line, start, alternatives: line.alternatives ?? [], rich: text.length <= LONG || undefined });
          add(fresh, Math.min(at / text.length, 1));
        });
      }
      finish(fresh, (performance.now() - begun) / 1000);
    } catch (error) {
      if (own.signal.aborted) return;
      translated = null;
      progress(0, 0);
      say("");
      problem(`Translation failed: ${error.message}.`);
    }
  }

  function add(fresh, share) {
    const i = fresh.length - 1;
    if (i === 0) {
      output.replaceChildren();
      choose(-1);
      pane.classList.remove("stale");
      count = 0;
    }
    sentences = fresh;
    if (fresh[i].source) count++;
    output.append(element(fresh[i], i), fresh[i].gap);
    if (source.value.length > LONG) {
      progress(share, 1);
      say(`${plural(count, "sentence")}, ${Math.floor(100 * share)} %`);
    }
    enable();
  }

  function finish(fresh, seconds) {
    sentences = fresh;
    if (!fresh.length) output.replaceChildren(), choose(-1), (count = 0);
    pane.classList.remove("stale");
    progress(0, 0);
    say(count > 3 ? plural(count, "sentence") + (seconds >= 0.1 ? ` in ${seconds.toFixed(1)} s` : "") : "");
    if (count === 1 && document.activeElement === source) choose(fresh.findIndex((s) => s.source));
    enable();
  }

  // -- sentences and words ---------------------------------------------------------------------------------------

  function element(sentence, i) {
    const span = document.createElement("span");
    if (!sentence.source) return span;
    span.className = "sentence";
    span.dataset.i = i;
    span.tabIndex = i === sentences.findIndex((s) => s.source) ? 0 : -1;
    span.setAttribute("role", "button");
    fill(span, sentence);
    return span;
  }

  function fill(span, { text, alignment }) {
    const found = alignment ? spans(text, alignment.target_words) : [];
    const nodes = [];
    let from = 0;
    for (const [number, place] of found.entries()) {
      if (!place) continue;
      nodes.push(text.slice(from, place[0]));
      const word = document.createElement("span");
      word.className = "word";
      word.dataset.word = number;
      word.textContent = text.slice(...place);
      nodes.push(word);
      from = place[1];
    }
    span.replaceChildren(...nodes, text.slice(from));
  }

  const spanOf = (i) => output.querySelector(`.sentence[data-i="${i}"]`);

  async function choose(i) {
    if (chosen >= 0) spanOf(chosen)?.classList.remove("chosen");
    chosen = i;
    if (i < 0) return light(-1), void (byId("alternatives").hidden = true);
    spanOf(i)?.classList.add("chosen");
    const sentence = sentences[i];
    await (sentence.rich ??= enrich(sentence, i));
    if (chosen === i && sentences[i] === sentence) list(sentence, i);
  }

  async function enrich(sentence, i) {
    try {
      const answer = await translate({ text: sentence.source, ...asked(), ...RICH });
      const [best] = answer.translations[0].sentences;
      if (best && answer.translations[0].sentences.length === 1) Object.assign(sentence, { alternatives: [], ...best, gap: sentence.gap });
      if (sentences[i] === sentence) fill(spanOf(i), sentence);
    } catch {
      sentence.rich = undefined; // try again the next time it is selected
    }
  }

  function list(sentence, i) {
    const ways = (sentence.ways ??= [pick(sentence), ...sentence.alternatives.map(pick)]);
    const best = ways[0].score;
    byId("alternatives").hidden = ways.length < 2;
    byId("alternatives-list").replaceChildren(
      ...ways.map((way) => {
        const item = document.createElement("li"), button = document.createElement("button");
        const text = document.createElement("bdi"), score = document.createElement("small");
        button.type = "button";
        button.lang = model.target;
        button.setAttribute("aria-pressed", String(way.text === sentence.text));
        text.textContent = way.text || "(empty)";
        score.textContent = way.score === best ? "best" : (way.score - best).toFixed(2).replace("-", "−");
        score.title = `score ${way.score.toFixed(3)}`;
        button.append(text, score);
        button.addEventListener("click", () => {
          Object.assign(sentence, way);
          fill(spanOf(i), sentence);
          list(sentence, i);
          [...byId("alternatives-list").querySelectorAll("button")][ways.indexOf(way)].focus();
        });
        item.append(button);
        return item;
      }),
    );
  }

  const pick = ({ text, score, alignment }) => ({ text, score, alignment });

  // Highlight a target word and the source words it came from.
  function light(i, word) {
    for (const lit of output.querySelectorAll(".lit")) lit.classList.remove("lit");
    const sentence = sentences[i];
    if (!sentence?.alignment || word === undefined) return draw([]);
    mark(spanOf(i), word, 1);
    const places = spans(sentence.source, sentence.alignment.source_words);
    draw(
      sourcesOf(sentence.alignment, word)
        .filter(([k]) => places[k])
        .map(([k, weight]) => [sentence.start + places[k][0], sentence.start + places[k][1], weight]),
    );
  }

  // Highlight the translation of the word at the caret.
  function lightFromCaret() {
    if (document.activeElement !== source || source.selectionStart !== source.selectionEnd) return;
    const at = source.selectionStart;
    const i = sentences.findIndex((s) => s.source && s.start <= at && at <= s.start + s.source.length);
    light(-1);
    const sentence = sentences[i];
    if (!sentence?.alignment || translated !== key(source.value)) return;
    const places = spans(sentence.source, sentence.alignment.source_words);
    const k = places.findIndex((place) => place && sentence.start + place[0] <= at && at <= sentence.start + place[1]);
    if (k < 0) return;
    for (const [word, weight] of targetsOf(sentence.alignment, k)) mark(spanOf(i), word, weight);
  }

  function mark(span, word, weight) {
    const element = span?.querySelector(`[data-word="${word}"]`);
    element?.classList.add("lit");
    element?.style.setProperty("--weight", weight);
  }

  function draw(marks) {
    const text = source.value, nodes = [];
    let from = 0;
    for (const [start, end, weight] of marks) {
      nodes.push(text.slice(from, start));
      const mark = document.createElement("mark");
      mark.textContent = text.slice(start, end);
      mark.style.setProperty("--weight", weight);
      nodes.push(mark);
      from = end;
    }
    byId("backdrop").replaceChildren(...nodes, text.slice(from), "\n\u200b");
  }

  // -- user actions ----------------------------------------------------------------------------------------

  function changed() {
    draw([]);
    const length = [...source.value].length;
    byId("count").textContent = length ? plural(length, "character") : "";
    byId("clear").hidden = !length;
    clearTimeout(timer);
    timer = setTimeout(run, length > LONG ? 2 * PAUSE : PAUSE);
  }

  async function open(file) {
    if (!file) return;
    const text = file.size > MAX_FILE ? "\0" : decoded(await file.arrayBuffer());
    if (text.includes("\0")) return problem(`${file.name} is not a text file of at most ${MAX_FILE / 1e6} MB.`);
    fileName = file.name;
    source.value = text.replace(/\r\n?/g, "\n");
    changed();
    run();
  }

  const result = () => sentences.map(({ text, gap }) => text + gap).join("");

  function save() {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([result()], { type: "text/plain" }));
    link.download = `${fileName.replace(/\.txt$/i, "") || "translation"}.${model.target}.txt`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }

  async function copy() {
    try {
      await navigator.clipboard.writeText(result());
    } catch { // no clipboard without https: select and copy the old way
      getSelection().selectAllChildren(output);
      document.execCommand("copy");
      getSelection().removeAllRanges();
    }
    byId("copy").textContent = "Copied";
    setTimeout(() => (byId("copy").textContent = "Copy"), 1500);
  }

  function move(event) {
    const span = event.target.closest(".sentence");
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], along = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!span || !(step || along || event.key === "Enter" || event.key === " ")) return;
    event.preventDefault();
    const i = Number(span.dataset.i);
    if (step) {
      const all = [...output.querySelectorAll(".sentence")];
      const next = all[all.indexOf(span) + step];
      if (!next) return;
      span.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    } else if (along) {
      const words = [...span.querySelectorAll(".word")];
      const at = words.findIndex((word) => word.classList.contains("lit"));
      const next = words[at < 0 ? (along > 0 ? 0 : words.length - 1) : at + along];
      if (next) light(i, Number(next.dataset.word));
    } else {
      choose(i).then(() => byId("alternatives-list").querySelector("button")?.focus());
    }
  }

  const say = (text) => (byId("status").textContent = text);

  function enable() {
    const isEmpty = !sentences.some(({ text }) => text.trim()); // stops at the first
    for (const id of ["copy", "download"]) byId(id).disabled = isEmpty;
  }

  function problem(text) {
    byId("problem").textContent = text;
    byId("problem").hidden = !text;
  }

  function progress(value, max) {
    byId("progress").hidden = !max;
    if (max) Object.assign(byId("progress"), { max, value });
  }

  source.addEventListener("input", () => ((fileName = source.value ? fileName : ""), changed()));
  byId("terms").addEventListener("input", changed);
  source.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.preventDefault(), run();
  });
  document.addEventListener("selectionchange", lightFromCaret);
  source.addEventListener("blur", () => output.matches(":hover") || light(-1));
  output.addEventListener("pointerover", ({ target }) => {
    const word = target.closest(".word");
    if (word) light(Number(word.closest(".sentence").dataset.i), Number(word.dataset.word));
  });
  output.addEventListener("pointerleave", () => light(-1));
  output.addEventListener("click", ({ target }) => {
    const span = target.closest(".sentence");
    if (span) choose(Number(span.dataset.i));
  });
  output.addEventListener("focusin", ({ target }) => {
    if (target.matches(".sentence")) choose(Number(target.dataset.i));
  });
  output.addEventListener("keydown", move);
  byId("clear").addEventListener("click", () => {
    source.value = fileName = "";
    changed();
    run();
    source.focus();
  });
  byId("upload").addEventListener("click", () => byId("file").click());
  byId("file").addEventListener("change", ({ target }) => {
    open(target.files[0]);
    target.value = "";
  });
  byId("copy").addEventListener("click", copy);
  byId("download").addEventListener("click", save);
  addEventListener("online", run);
  const hasFile = (event) => event.dataTransfer.types.includes("Files"); // dragged text is the browser's business
  addEventListener("dragover", (event) => {
    if (!hasFile(event)) return;
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  addEventListener("dragleave", ({ relatedTarget }) => relatedTarget ?? document.body.classList.remove("dropping"));
  addEventListener("drop", (event) => {
    if (!hasFile(event)) return;
    event.preventDefault();
    document.body.classList.remove("dropping");
    open(event.dataTransfer.files[0]);
  });

  return (newModel) => {
    model = newModel;
    changed();
  };
}
