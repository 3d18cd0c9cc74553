// The frame of the page: views and choice of model.

import { getJson } from "./api.js";
import { startLayers } from "./layers.js";
import { startTranslate } from "./translate.js";

const byId = (id) => document.getElementById(id);
const names = new Intl.DisplayNames(["en"], { type: "language", fallback: "code" });

export function languageName(code) {
  try {
    const locale = new Intl.Locale(code.replace("_", "-"));
    const isUsual = new Intl.Locale(locale.language).maximize().script === locale.script; // German, Chinese (Traditional)
    return names.of(isUsual ? locale.language : locale.baseName);
  } catch {
    return code;
  }
}

function show() {
  const layers = location.hash === "#layers";
  byId("translate-view").hidden = layers;
  byId("layers-view").hidden = !layers;
  byId(layers ? "to-layers" : "to-translate").setAttribute("aria-current", "page");
  byId(layers ? "to-translate" : "to-layers").removeAttribute("aria-current");
  document.title = layers ? "Layers · deepnmt" : "deepnmt";
}

function startModels(models, changed) {
  const select = byId("model");
  for (const [i, model] of models.entries()) {
    const pair = `${languageName(model.source)} → ${languageName(model.target)}`;
    const same = models.filter((other) => other.source === model.source && other.target === model.target);
    const label = model.sources ? model.name : same.length > 1 ? `${pair} (${model.name})` : pair;
    select.add(new Option(label, String(i)));
  }
  select.hidden = models.length < 2;
  byId("model-form").hidden = models.length < 2 && !models.some((model) => model.sources);
  byId("model-form").addEventListener("submit", (event) => event.preventDefault());
  const sides = { source: byId("source-language"), target: byId("target-language") };
  // The chosen model; of one with several languages, for the chosen pair of them.
  const chosen = () => {
    const model = models[Number(select.value)];
    return model.sources ? { ...model, source: sides.source.value, target: sides.target.value } : model;
  };
  const reverse = () => {
    const { source, target, sources, targets } = chosen();
    if (sources) return sources.includes(target) && targets.includes(source) ? Number(select.value) : -1;
    return models.findIndex((model) => model.source === target && model.target === source);
  };
  const list = () => {
    const model = models[Number(select.value)];
    byId("choice").hidden = !model.sources;
    for (const [side, codes] of [["source", model.sources], ["target", model.targets]]) {
      const named = (codes ?? []).map((code) => [languageName(code), code]).sort(([a], [b]) => a.localeCompare(b));
      sides[side].replaceChildren(...named.map(([name, code]) => new Option(name, code)));
      sides[side].value = model[side];
    }
  };
  const use = () => {
    const model = chosen();
    byId("source-label").textContent = languageName(model.source);
    byId("target-label").textContent = languageName(model.target);
    byId("source").lang = model.source;
    byId("output").lang = model.target;
    byId("swap").hidden = reverse() < 0;
    changed(model);
  };
  select.addEventListener("change", () => (list(), use()));
  for (const side of Object.values(sides)) side.addEventListener("change", use);
  byId("swap").addEventListener("click", () => {
    const text = byId("output").textContent;
    const { source, target, sources } = chosen();
    select.value = String(reverse());
    if (sources) [sides.source.value, sides.target.value] = [target, source];
    if (text) byId("source").value = text;
    use();
  });
  list();
  use();
}

async function start() {
  addEventListener("hashchange", show);
  show();
  try {
    const [models, limits] = await Promise.all([getJson("models"), getJson("limits")]);
    const translate = startTranslate(limits);
    const layers = startLayers();
    startModels(models, (model) => {
      translate(model);
      layers(model);
    });
    document.documentElement.dataset.ready = "";
  } catch (error) {
    byId("problem").textContent = `The page cannot start: ${error.message}.`;
    byId("problem").hidden = false;
  }
}

start();
