// Instead of peers.ts, in a build for which the peers are not installed.

export const peers = {};
