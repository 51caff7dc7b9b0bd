/** Light, dark, or as the system has it: kept for this browser. */

const THEME = "stateline-theme";
export const THEMES = ["system", "light", "dark"];

export function theme() {
  const kept = localStorage.getItem(THEME);
  return THEMES.includes(kept) ? kept : "system";
}

/** Show this theme from now on. */
export function setTheme(name) {
  if (name === "system") localStorage.removeItem(THEME);
  else localStorage.setItem(THEME, name);
  document.documentElement.dataset.theme = name;
  dispatchEvent(new Event("themechange")); // what is drawn on a canvas takes its colours anew
}

/** A colour of the style sheet, as `--muted`, as a canvas takes it: for the theme that is shown now. */
export function colour(name) {
  const probe = document.documentElement.appendChild(document.createElement("i"));
  probe.style.color = `var(${name})`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

document.documentElement.dataset.theme = theme();
