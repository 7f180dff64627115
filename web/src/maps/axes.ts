// The names of a map's rows and columns.

export type Axes = readonly [rows: string, columns: string];

const usual: Axes = ['query', 'key'];

/** The names in a map whose columns have labels. */
export const axesOf = ({ axes = usual }: { readonly axes?: Axes }): Axes => axes;
