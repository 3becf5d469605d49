/** Longest line of a program's output; the start of a longer one is dropped. */
const LINE_MAX_CHARS = 64 * 1024;

/** Splits output into whole lines, whatever chunks it comes in. */
export function lineSplitter(onLine: (line: string) => void): (chunk: Buffer) => void {
  const decoder = new TextDecoder();
  let partial = '';
  return (chunk) => {
    const lines = (partial + decoder.decode(chunk, { stream: true })).split('\n');
    partial = (lines.pop() ?? '').slice(-LINE_MAX_CHARS);
    for (const line of lines) onLine(line);
  };
}
