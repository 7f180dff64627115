// The text of pool_worker.js; build.mjs makes it.
declare const text: string;
export default text;
