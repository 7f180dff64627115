// Constants that the build defines; see vite.config.ts.

/** True if the peers of the speed section are installed. */
declare const __HAS_PEERS__: boolean;
/** True if the guides and references were built; they are in docs/ next to the page. */
declare const __HAS_DOCS__: boolean;
