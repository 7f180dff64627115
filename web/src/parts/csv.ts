// Parts of files that spreadsheets read.

/** A field of a CSV file, RFC 4180. */
export const quoted = (text: string): string => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
