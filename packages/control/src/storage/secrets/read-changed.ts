/** What a runner is to be told of its sandboxes: only of those of which it has something else, and a bounded amount at once. */

/** Content of one answer, in bytes; that of a single sandbox may be more. */
const ANSWER_BYTES = 4 * 1024 * 1024;
/** The revision of a sandbox that has nothing. */
const NONE = 'none';

export interface Known {
  id: string;
  /** What the runner has of it. */
  revision?: string;
}

/**
 * @param revisions the present ones, by sandbox
 * @param read the content of one sandbox, and its size in bytes
 * @returns `more`: others have changed, too
 */
export async function readChanged<Content>(
  known: readonly Known[],
  revisions: readonly { id: string; revision: string }[],
  read: (id: string) => Promise<{ content: Content[]; bytes: number }>,
): Promise<{ changed: { id: string; revision: string; content: Content[] }[]; more: boolean }> {
  const present = new Map(revisions.map(({ id, revision }) => [id, revision]));
  const changed: { id: string; revision: string; content: Content[] }[] = [];
  let sum = 0;
  for (const { id, revision: has } of known) {
    const revision = present.get(id) ?? NONE;
    if (revision === has) continue;
    if (sum >= ANSWER_BYTES) return { changed, more: true };
    const { content, bytes } = revision === NONE ? { content: [], bytes: 0 } : await read(id);
    sum += bytes;
    changed.push({ id, revision, content });
  }
  return { changed, more: false };
}
