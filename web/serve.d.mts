import type { Server } from 'node:http';

export const contentSecurityPolicy: string;

export interface ServeOptions {
  /** Folder to serve; default build/web of this repository. */
  root?: string;
  /** Default 8080; the next free one is taken when it is in use. 0 lets the system choose. */
  port?: number;
  /** Default 127.0.0.1. */
  host?: string;
}

export interface Running {
  server: Server;
  port: number;
  host: string;
  url: string;
  close(): Promise<void>;
}

export function serve(options?: ServeOptions): Promise<Running>;

/** Where PORT and HOST of the environment want it; throws when PORT is no port. */
export function wishedAddress(): { port: number; host: string };
