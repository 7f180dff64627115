/** Matches if the visitor has asked the system for less motion. */
export const reducedMotion = matchMedia('(prefers-reduced-motion: reduce)');
