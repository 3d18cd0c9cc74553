// The colours. This runs before the first paint, so that the page never flashes in the wrong ones.
{
  const root = document.documentElement, system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  try {
    const kept = localStorage.getItem("theme");
    if (kept) root.dataset.theme = kept;
  } catch { /* no storage: follow the system */ }

  addEventListener("DOMContentLoaded", () => {
    const button = document.createElement("button");
    const label = () => (button.ariaLabel = `Switch to ${isDark() ? "light" : "dark"} colours`);
    Object.assign(button, { id: "theme", type: "button", className: "quiet round", textContent: "◐" });
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      try {
        localStorage.setItem("theme", root.dataset.theme);
      } catch { /* no storage: kept for this visit */ }
      label();
    });
    system.addEventListener("change", label);
    label();
    document.querySelector("nav").append(button);
  });
}
