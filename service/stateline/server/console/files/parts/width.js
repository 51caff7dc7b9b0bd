/** How wide something is. */

import { useEffect, useState } from "../vendor/htm-preact-3.1.1.js";

/** The width inside of the element of `ref`, and again when that is another; 0 until it is known. */
export function useWidth(ref) {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const sized = new ResizeObserver(() => setWidth(ref.current.clientWidth));
    sized.observe(ref.current);
    return () => sized.disconnect();
  }, []);
  return width;
}
