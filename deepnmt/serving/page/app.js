// The frame of the page: views, colour theme and choice of model.

import { getJson } from "/page/api.js";
import { startLayers } from "/page/layers.js";
import { startTranslate } from "/page/translate.js";

const byId = (id) => document.getElementById(id);
const names = new Intl.DisplayNames(["en"], { type: "language", fallback: "code" });

export function languageName(code) {
  try {
    return names.of(code.replace("_", "-"));
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

function startTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const label = () => byId("theme").setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
  byId("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("theme", root.dataset.theme);
    } catch { /* no storage: kept for this visit */ }
    label();
  });
  system.addEventListener("change", label);
  label();
}

function startModels(models, changed) {
  const select = byId("model");
  for (const [i, model] of models.entries()) {
    const pair = `${languageName(model.source)} → ${languageName(model.target)}`;
    const same = models.filter((other) => other.source === model.source && other.target === model.target);
    select.add(new Option(same.length > 1 ? `${pair} (${model.name})` : pair, String(i)));
  }
  byId("model-form").hidden = models.length < 2;
  byId("model-form").addEventListener("submit", (event) => event.preventDefault());
  const reverse = () => {
    const { source, target } = models[Number(select.value)];
    return models.findIndex((model) => model.source === target && model.target === source);
  };
  const use = () => {
    const model = models[Number(select.value)];
    byId("source-label").textContent = languageName(model.source);
    byId("target-label").textContent = languageName(model.target);
    byId("source").lang = model.source;
    byId("output").lang = model.target;
    byId("swap").hidden = reverse() < 0;
    changed(model);
  };
  select.addEventListener("change", use);
  byId("swap").addEventListener("click", () => {
    const text = byId("output").textContent;
    select.value = String(reverse());
    if (text) byId("source").value = text;
    use();
  });
  use();
}

async function start() {
  startTheme();
  addEventListener("hashchange", show);
  show();
  try {
    const [models, limits] = await Promise.all([getJson("/models"), getJson("/limits")]);
    const translate = startTranslate(limits);
    const layers = startLayers();
    startModels(models, (model) => {
      translate(model);
      layers(model);
    });
    document.documentElement.dataset.ready = "";
  } catch (error) {
    byId("problem").textContent = `The server cannot be reached: ${error.message}`;
    byId("problem").hidden = false;
  }
}

start();
