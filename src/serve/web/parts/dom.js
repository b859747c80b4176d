// The one place where the vendored view library enters: everything else imports from here.
import { h } from "../vendor/preact.mjs";
import htm from "../vendor/htm.mjs";

export { render, Fragment } from "../vendor/preact.mjs";
export { useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback } from "../vendor/hooks.mjs";

/** Turns a template into elements. Values become text nodes and properties, never markup. */
export const html = htm.bind(h);
