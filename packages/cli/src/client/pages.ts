import { CliError } from '../cli-error.ts';

const PAGE = 200;

/** All items of a paged list. `items` extracts those of a page. */
export async function* pages<P extends { next_cursor: string | null }, T>(
  list: (page: { query: { limit: number; cursor: string | undefined } }) => Promise<P>,
  items: (page: P) => T[],
): AsyncGenerator<T> {
  let cursor: string | undefined;
  do {
    const page = await list({ query: { limit: PAGE, cursor } });
    const found: unknown = items(page);
    if (!Array.isArray(found))
      throw new CliError('the service did not answer with a list: is it a Releap service?');
    yield* found as T[];
    cursor = page.next_cursor ?? undefined;
  } while (cursor !== undefined);
}
