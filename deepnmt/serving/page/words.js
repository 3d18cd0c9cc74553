// Texts: of files, in parts, and where words stand in them and which belong together.

// [start, end] of each word in order, or null where it cannot be found.
export function spans(text, words) {
  let from = 0;
  return words.map((word) => {
    const start = word ? text.indexOf(word, from) : -1;
    if (start < 0) return null;
    from = start + word.length;
    return [start, from];
  });
}

// The source words that a target word looks at, with weights from 0 to 1 relative to the strongest.
export function sourcesOf(alignment, target) {
  const row = alignment.weights[target] ?? [];
  const most = Math.max(...row);
  return row.map((weight, i) => [i, weight / most]).filter(([, weight]) => weight >= 0.5);
}

export function targetsOf(alignment, source) {
  return alignment.target_words
    .map((_, i) => [i, Object.fromEntries(sourcesOf(alignment, i))[source] ?? 0])
    .filter(([, weight]) => weight > 0);
}

// A text in parts of at most `most` characters (code points), cut after line breaks, or where it must be.
export function parts(text, most) {
  const found = [];
  let start = 0;
  while (text.length - start > most) {
    const window = text.slice(start, start + most);
    let end = window.lastIndexOf("\n") + 1;
    if (end < most / 4) end = Math.max(window.lastIndexOf(". ") + 2, end);
    if (end < most / 4) end = Math.max(window.lastIndexOf(" ") + 1, end);
    if (end < most / 4) end = most;
    if (/[\ud800-\udbff]/.test(text[start + end - 1])) end -= 1;
    found.push(text.slice(start, start + end));
    start += end;
  }
  found.push(text.slice(start));
  return found;
}

// The text of a file: UTF-8, UTF-16 with a byte order mark, or else as older Windows programs wrote it.
export function decoded(bytes) {
  const marks = { "255,254": "utf-16le", "254,255": "utf-16be" };
  try {
    return new TextDecoder(marks[new Uint8Array(bytes).slice(0, 2)] ?? "utf-8", { fatal: true }).decode(bytes);
  } catch {
    return new TextDecoder("windows-1252").decode(bytes);
  }
}
