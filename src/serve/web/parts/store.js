// A value that several parts of the page watch.
import { useEffect, useState } from "./dom.js";

/** Creates a store with `get`, `set` and `watch`; `watch` returns the function that ends the watching. */
export function store(value) {
  const watchers = new Set();
  return {
    get: () => value,
    set(next) {
      if (Object.is(next, value)) return;
      value = next;
      for (const watcher of [...watchers]) watcher(value);
    },
    watch(watcher) {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
  };
}

/** Reads a store in a component, which is drawn again when the value changes. */
export function useStore(of) {
  const [value, setValue] = useState(of.get());
  useEffect(() => {
    setValue(of.get());
    return of.watch(setValue);
  }, [of]);
  return value;
}

/** What the browser remembers between visits: JSON under a name. Storage can be full or forbidden. */
export const remembered = {
  get(name, otherwise) {
    try {
      const text = localStorage.getItem(name);
      return text === null ? otherwise : JSON.parse(text);
    } catch {
      return otherwise;
    }
  },
  set(name, value) {
    try {
      if (value === undefined) localStorage.removeItem(name);
      else localStorage.setItem(name, JSON.stringify(value));
    } catch {
      // Then it is forgotten, which changes nothing else.
    }
  },
};
