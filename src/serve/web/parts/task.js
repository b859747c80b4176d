// A long work of a page: started here, or at work since before the page was left and opened again. A page that was
// left hears nothing of it any more, so nobody is taken away from where they are.
import { call, finish } from "../api.js";
import { useEffect, useRef, useState } from "./dom.js";
import { asProblem } from "./load.js";

/**
 * Returns `{ task, start }`: the task that is at work, and what starts one. `onDone` gets its result, `onProblem`
 * why it failed. A task of this `kind` that is at work already is followed at once.
 */
export function useTask(kind, { onDone, onProblem }) {
  const [task, setTask] = useState(null);
  const told = useRef(null);
  told.current = { onDone, onProblem };
  const ending = useRef(null);
  const follow = async (asked) => {
    const { signal } = ending.current;
    const onUpdate = (next) => !signal.aborted && setTask(next);
    try {
      const result = await finish(await asked, { onUpdate, signal });
      if (!signal.aborted) told.current.onDone(result);
    } catch (error) {
      if (!signal.aborted) told.current.onProblem(asProblem(error));
    }
    if (!signal.aborted) setTask(null);
  };
  useEffect(() => {
    ending.current = new AbortController();
    call("GET /api/v1/tasks", { signal: ending.current.signal }).then(
      ({ items }) => {
        const working = items.find((each) => each.kind === kind && each.state === "running");
        if (working) follow(working);
      },
      // The page itself reads something too, and says what is wrong.
      () => {},
    );
    return () => ending.current.abort();
  }, [kind]);
  return { task, start: (endpoint, body, params) => follow(call(endpoint, { body, params })) };
}
