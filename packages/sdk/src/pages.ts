import { ReleapError } from './error.ts';

const PAGE = 200;

/**
 * All items of a paged list.
 * @param list asks for one page
 * @param items the field of a page with its items
 */
export async function* pages<K extends string, T>(
  list: (page: {
    query: { limit: number; cursor: string | undefined };
  }) => Promise<{ [P in K]: T[] } & { next_cursor?: string | null }>,
  items: K,
): AsyncGenerator<T> {
  let cursor: string | undefined;
  do {
    const page = await list({ query: { limit: PAGE, cursor } });
    const found: unknown = page[items];
    if (!Array.isArray(found))
      throw new ReleapError('malformed', 'the service did not answer with a list: is it a Releap service?');
    yield* found as T[];
    cursor = page.next_cursor ?? undefined;
  } while (cursor !== undefined);
}
