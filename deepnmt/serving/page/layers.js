// How much each layer weights the earlier ones: the learned weights of a model's connections as a table of colours.

import { getJson } from "./api.js";

const layer = (k) => (k === 0 ? "the embedding" : `layer ${k}`);

const capital = (text) => text[0].toUpperCase() + text.slice(1);

// "layer 3" is 3, "decoder layer 1" is D1, "the output" is out.
const short = (reader) => reader.replace("decoder layer ", "D").replace("layer ", "").replace("the output", "out");

export function startLayers() {
  const stacks = document.getElementById("stacks"), faint = document.getElementById("faint");
  let model, drawn;

  async function draw() {
    if (!model || location.hash !== "#layers") return;
    if (drawn !== model.name) {
      drawn = model.name;
      try {
        const table = await getJson(`models/${encodeURIComponent(model.name)}/connections`);
        stacks.replaceChildren(...["encoder", "decoder"].map((side) => panel(side, table[side])));
      } catch (error) {
        stacks.textContent = `The weights cannot be shown: ${error.message}`;
      }
    }
    paint();
  }

  function paint() {
    for (const cell of stacks.querySelectorAll("td[data-value]")) {
      const blank = cell.dataset.faint === "yes" && !faint.checked;
      const value = Number(cell.dataset.value);
      cell.classList.toggle("positive", !blank && value >= 0);
      cell.classList.toggle("negative", !blank && value < 0);
    }
  }

  faint.addEventListener("change", paint);
  addEventListener("hashchange", draw);
  return (newModel) => {
    model = newModel;
    draw();
  };
}

function panel(side, stack) {
  const section = document.createElement("section");
  section.className = "stack";
  section.id = `stack-${side}`;
  section.append(made("h2", capital(side)), made("p", `${stack.num_layers} layers, ${stack.kind} connection`));
  if (!stack.matrix) {
    section.append(made("p", "This connection scheme has no learned weights to show."));
    return section;
  }
  const readout = made("p", "Point at a square or use the arrow keys.");
  readout.className = "readout";
  readout.setAttribute("aria-live", "polite");
  section.append(readout, table(side, stack, readout));
  return section;
}

function table(side, stack, readout) {
  const matrix = stack.matrix, columns = matrix[0].length;
  const every = columns > 16 ? 5 : 1; // labels that fit
  const heat = document.createElement("table");
  heat.className = "heat";
  heat.tabIndex = 0;
  heat.style.maxWidth = `${2.1 + 4 * columns}rem`; // few layers need no large squares
  heat.setAttribute("aria-label", `Weights of the ${side}: a row is what reads, a column the output it weights`);
  const head = heat.createTHead().insertRow();
  head.append(header("col", "", "corner"), ...matrix[0].map((_, k) => header("col", k % every ? "" : k || "emb")));
  const body = heat.createTBody();
  for (const [r, row] of matrix.entries()) {
    const line = body.insertRow();
    line.append(header("row", short(stack.readers[r])));
    for (const [k, value] of row.entries()) {
      const cell = line.insertCell();
      if (value === 0) {
        cell.className = "empty";
        continue;
      }
      cell.dataset.value = value;
      cell.dataset.faint = stack.faint[r][k] ? "yes" : "no";
      cell.dataset.told = `${capital(stack.readers[r])} weights ${layer(k)}: ${value.toFixed(3).replace("-", "−")}`;
      cell.setAttribute("aria-label", cell.dataset.told);
      cell.style.setProperty("--strength", (6 + 94 * Math.sqrt(Math.abs(stack.shades[r][k]))).toFixed(1));
    }
  }
  let at = null;
  const go = (cell) => {
    if (!cell?.dataset.told) return;
    at?.classList.remove("at");
    at = cell;
    at.classList.add("at");
    readout.textContent = cell.dataset.told + (cell.dataset.faint === "yes" ? " (faint)" : "");
  };
  heat.addEventListener("pointerover", ({ target }) => go(target.closest("td")));
  heat.addEventListener("click", ({ target }) => go(target.closest("td")));
  heat.addEventListener("keydown", (event) => {
    const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] ?? [];
    if (down === undefined) return;
    event.preventDefault();
    if (!at) return go(body.querySelector("td[data-told]"));
    go(body.rows[at.parentNode.sectionRowIndex + down]?.cells[at.cellIndex + right]);
  });
  return heat;
}

function header(scope, text, name) {
  const cell = made("th", text);
  cell.scope = scope;
  if (name) cell.className = name;
  return cell;
}

function made(tag, text) {
  const element = document.createElement(tag);
  element.textContent = text;
  return element;
}
