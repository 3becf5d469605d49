import { type Context, printable, show } from '../terminal.ts';

/** Rows in columns, two spaces between, nothing at line ends. What a stranger named is made printable. */
export function table(heads: readonly string[], rows: readonly (readonly string[])[]): string {
  const safe = rows.map((row) => row.map(printable));
  const widths = heads.map((head, column) =>
    Math.max(head.length, ...safe.map((row) => (row[column] ?? '').length)),
  );
  return [heads, ...safe]
    .map((row) =>
      row
        .map((cell, column) => cell.padEnd(widths[column] ?? 0))
        .join('  ')
        .trimEnd(),
    )
    .join('\n');
}

/** `12 s`, `5 min`, `3 h`, `9 d` since an RFC 3339 time; `-` when it is not known. */
export function age(time: string | undefined, now = Date.now()): string {
  const seconds = Math.max(0, Math.floor((now - Date.parse(time ?? '')) / 1000));
  if (Number.isNaN(seconds)) return '-';
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86_400)} d`;
}

/** `512 B`, `4 KiB`, `1024 MiB`, as whole ones, rounded up; `-` when it is not known. */
export function size(bytes: number | undefined): string {
  if (bytes === undefined) return '-';
  if (bytes < 1024) return `${bytes} B`;
  return bytes < 2 ** 20 ? `${Math.ceil(bytes / 1024)} KiB` : `${Math.ceil(bytes / 2 ** 20)} MiB`;
}

/** `2026-01-31 12:00`, UTC. */
export function shortTime(time: string): string {
  return time.slice(0, 16).replace('T', ' ');
}

/** `0.42 ms`, `12.3 ms`, `1250 ms`; `-` when it is not known. */
export function milliseconds(ms: number | null): string {
  if (ms === null) return '-';
  return `${ms < 1 ? ms.toFixed(2) : ms < 100 ? ms.toFixed(1) : Math.round(ms)} ms`;
}

/** A list as the result of a command. @param row the cells of one item */
export function showTable<T>(
  context: Context,
  items: readonly T[],
  heads: readonly string[],
  row: (item: T) => readonly string[],
): number {
  return show(context, items, () => table(heads, items.map(row)));
}
