/** Where a step of a build is in its Dockerfile. A search for its text, not a parser: the Dockerfile is untrusted. */

/** Number of the line in which a step begins, or undefined. @param step as buildah prints it */
export function lineOf(dockerfile: string, step: string): number | undefined {
  const wanted = words(step);
  const index = dockerfile.split('\n').findIndex((line) => {
    const begin = words(line.replace(/[\\`]\s*$/, ''));
    if (begin === wanted) return true;
    // It continues on the next line, or in a heredoc.
    return /[\\`]\s*$|<</.test(line) && begin.includes(' ') && wanted.startsWith(begin);
  });
  return index < 0 ? undefined : index + 1;
}

/** With single spaces, and the instruction in capitals. */
function words(text: string): string {
  const normal = text.trim().replaceAll(/\s+/g, ' ');
  return normal.replace(/^[A-Za-z]+/, (instruction) => instruction.toUpperCase());
}
