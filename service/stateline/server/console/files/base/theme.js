/** Light, dark or the system's theme, kept for this browser. */

const THEME = "stateline-theme";
export const THEMES = ["system", "light", "dark"];

export function theme() {
  const kept = localStorage.getItem(THEME);
  return THEMES.includes(kept) ? kept : "system";
}

/** Show this theme. */
export function setTheme(name) {
  if (name === "system") localStorage.removeItem(THEME);
  else localStorage.setItem(THEME, name);
  document.documentElement.dataset.theme = name;
  dispatchEvent(new Event("themechange")); // canvases are drawn again in the new colours
}

/** A colour of the style sheet, such as `--muted`, in the current theme, for a canvas. */
export function colour(name) {
  const probe = document.documentElement.appendChild(document.createElement("i"));
  probe.style.color = `var(${name})`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

document.documentElement.dataset.theme = theme();
