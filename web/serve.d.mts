import type { Server } from 'node:http';

/** The security policy as the page itself can state it, in a meta element. */
export const policyInPage: string;
/** policyInPage with `frame-ancestors`, which only a header can state. */
export const contentSecurityPolicy: string;

export interface ServeOptions {
  /** Folder to serve; default build/web of this repository. */
  root?: string;
  /** Default 8080. If it is in use, the next free port is taken. With 0 the system chooses. */
  port?: number;
  /** Default 127.0.0.1. */
  host?: string;
  /** Returns a promise if the file of a path is still being built. The answer waits for it; if it fails, the answer is 503. */
  arrival?: (path: string) => Promise<void> | undefined;
}

export interface Running {
  server: Server;
  port: number;
  host: string;
  url: string;
  close(): Promise<void>;
}

export function serve(options?: ServeOptions): Promise<Running>;

/** The port and host from the environment variables PORT and HOST; throws if PORT is not a valid port. */
export function wishedAddress(): { port: number; host: string };
