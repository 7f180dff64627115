// A helper for CSV files, which spreadsheets read.

/** Quotes a field of a CSV file if it needs quotes (RFC 4180). */
export const quoted = (text: string): string => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
