/** Longest line of a program's output; the start of a longer one is dropped. */
const LINE_MAX_CHARS = 64 * 1024;

/** Splits output into whole lines, whatever chunks it comes in. @param max characters of a line that are kept */
export function lineSplitter(
  onLine: (line: string) => void,
  max: number = LINE_MAX_CHARS,
): (chunk: Buffer) => void {
  const decoder = new TextDecoder();
  let partial = '';
  return (chunk) => {
    const lines = decoder.decode(chunk, { stream: true }).split('\n');
    // Not split once more: a line may be long.
    lines[0] = partial + (lines[0] ?? '');
    partial = (lines.pop() ?? '').slice(-max);
    for (const line of lines) onLine(line);
  };
}
