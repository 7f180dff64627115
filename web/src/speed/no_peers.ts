// Replaces peers.ts in a build without installed peers.

export const peers = {};
