/** The width of an element. */

import { useEffect, useState } from "../vendor/htm-preact-3.1.1.js";

/** The inner width of the element of `ref`, updated on changes; 0 until known. */
export function useWidth(ref) {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const sized = new ResizeObserver(() => setWidth(ref.current.clientWidth));
    sized.observe(ref.current);
    return () => sized.disconnect();
  }, []);
  return width;
}
