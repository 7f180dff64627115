// What the build knows; see vite.config.ts.

/** Whether the peers of the speed section are installed. */
declare const __HAS_PEERS__: boolean;
/** Whether the guides and references were built; they are then in docs/ beside the page. */
declare const __HAS_DOCS__: boolean;
