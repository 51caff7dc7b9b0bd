/** Loads a library at its first use, once. */

const loading = new Map();

/** A library that is a classic script, by its file below `vendor/`; afterwards its global is there. Rejects when it cannot be loaded. */
export function script(file) {
  return once(file, (src) => element("script", { src, async: true }));
}

/** A library's style sheet. */
export function style(file) {
  return once(file, (href) => element("link", { rel: "stylesheet", href }));
}

export function module(file) {
  return once(file, (href) => import(href));
}

function once(file, load) {
  if (!loading.has(file)) {
    const loaded = load(new URL(`../vendor/${file}`, import.meta.url).href);
    loaded.catch(() => loading.delete(file)); // the next use tries again
    loading.set(file, loaded);
  }
  return loading.get(file);
}

function element(tag, members) {
  return new Promise((resolve, reject) => {
    const made = Object.assign(document.createElement(tag), members);
    made.onload = () => resolve();
    made.onerror = () => reject(new Error(`${tag} cannot be loaded`));
    document.head.prepend(made); // before this page's styles, which override a library's
  });
}
