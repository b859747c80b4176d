// Reading from the server in a component: once, or again and again while the page is seen.
import { Problem, call, connection } from "../api.js";
import { useCallback, useEffect, useRef, useState } from "./dom.js";

/**
 * Reads an endpoint and returns `{ data, problem, again }`. With `every` (milliseconds, or a function of the data
 * that returns them) it is read again as long as the tab is visible. `deps` are what the request depends on.
 */
export function useRead(endpoint, options = {}, deps = [], every = 0) {
  const [state, setState] = useState({ data: null, problem: null });
  const [round, setRound] = useState(0);
  const latest = useRef(null);
  useEffect(() => {
    if (!endpoint) return undefined;
    const ending = new AbortController();
    let timer = 0;
    const read = async () => {
      try {
        const data = await call(endpoint, { ...options, signal: ending.signal });
        latest.current = data;
        setState({ data, problem: null });
      } catch (error) {
        if (ending.signal.aborted) return;
        // What was read stays on the page while the server cannot be reached.
        setState((before) => ({ data: before.data, problem: asProblem(error) }));
      }
      if (!ending.signal.aborted) plan();
    };
    const plan = () => {
      const ms = typeof every === "function" ? every(latest.current) : every;
      if (ms > 0) timer = setTimeout(() => (document.hidden ? plan() : read()), ms);
    };
    read();
    // A page that was empty because the server was away is read again as soon as it is back.
    const ended = connection.watch(
      (now) => now === "ok" && !(every > 0) && latest.current === null && read(),
    );
    return () => {
      ending.abort();
      clearTimeout(timer);
      ended();
    };
  }, [endpoint, round, ...deps]);
  const again = useCallback(() => setRound((n) => n + 1), []);
  return { ...state, again };
}

/** Any error as a Problem. A mistake of this page is told too, and not hidden. */
export function asProblem(error) {
  if (error instanceof Problem) return error;
  return new Problem({
    title: "Something went wrong in this page",
    detail: String(error?.message ?? error),
    advice: "Load the page again. If it happens again, please report it.",
  });
}

/** A value that follows `value` after it has not changed for `ms`. */
export function useSettled(value, ms) {
  const [settled, setSettled] = useState(value);
  const text = JSON.stringify(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), ms);
    return () => clearTimeout(timer);
  }, [text, ms]);
  return settled;
}
