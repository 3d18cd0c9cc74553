// Runs before the first paint, so that the page never flashes in the wrong colours.
try {
  const kept = localStorage.getItem("theme");
  if (kept) document.documentElement.dataset.theme = kept;
} catch { /* no storage: follow the system */ }
