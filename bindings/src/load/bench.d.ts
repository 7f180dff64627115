// Types for bench/report.mjs, which is JavaScript.
declare module '*/bench/report.mjs' {
  /** Fields and units: native/BENCHMARKS.md. */
  export type BenchEvent =
    | { readonly machine: Readonly<Record<string, unknown>>; readonly benchmark?: never }
    | { readonly benchmark: Readonly<Record<string, unknown>>; readonly machine?: never };
  export const namesFor: (filter?: string) => string[];
  export const report: (mh: object, options: { readonly filter: string | undefined; readonly version: string }) => AsyncGenerator<BenchEvent>;
  export const machineLine: (machine: object) => string;
  export const header: () => string;
  export const row: (benchmark: object) => string;
}
