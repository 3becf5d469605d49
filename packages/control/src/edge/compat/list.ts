/** Lists of sandboxes: filtered, sorted, a page after a position. */
import { queryAll, statement, type Database, type Statement } from '@releap/database';
import { idRange } from './id-prefix.ts';
import { SORTS, writeCursor, type ListQuery, type SortField } from './list-query.ts';
import { ITEM_COLUMNS, JOINS, VISIBLE, type ItemRow } from './sandbox-rows.ts';
import { STATE_SQL } from './states.ts';

type Listed = ItemRow & { position: string };

/** Null parameters do not filter. */
const FILTER = `
  ($4::text is null or starts_with(s.region || '-', $4) or starts_with(s.id::text, $4)
    or (s.region = $5 and s.id between $6::uuid and $7::uuid))
  and ($8::text is null or starts_with(lower(s.spec ->> 'name'), lower($8)))
  and ($9::jsonb is null or c.labels @> $9 or $9 = '{}')
  and ($10::text[] is null or ${STATE_SQL} = any($10))
  and ($11::text[] is null or coalesce(c.snapshot, s.spec ->> 'image_ref') = any($11))
  and ($12::text[] is null or s.region = any($12))
  and ($13::float8 is null or s.cpu >= $13) and ($14::float8 is null or s.cpu <= $14)
  and ($15::float8 is null or s.mem_mib >= $15 * 1024) and ($16::float8 is null or s.mem_mib <= $16 * 1024)
  and ($17::float8 is null or s.scratch_mib >= $17 * 1024) and ($18::float8 is null or s.scratch_mib <= $18 * 1024)
  and ($19::timestamptz is null or s.created_at > $19) and ($20::timestamptz is null or s.created_at < $20)
  and ($21::timestamptz is null or s.updated_at > $21) and ($22::timestamptz is null or s.updated_at < $22)`;

/** $1 project, $2 rows, $3 and $23 position of the page before: value and id */
function pageStatement(sort: SortField, order: ListQuery['order']): Statement<Listed> {
  const { sql, type } = SORTS[sort];
  const beyond = order === 'asc' ? '>' : '<';
  return statement<Listed>(
    `compat-sandboxes-${sort}-${order}`,
    `select ${ITEM_COLUMNS}, (${sql})::text as position from sandboxes s ${JOINS}
      where s.id in (${VISIBLE('$1')}) and ($3::text is null or (${sql}, s.id) ${beyond} (($3::text)::${type}, $23::uuid))
        and ${FILTER}
      order by ${sql} ${order}, s.id ${order} limit $2`,
  );
}

export interface SandboxPage {
  rows: ItemRow[];
  nextCursor: string | null;
}

export async function listSandboxes(
  { pool }: Database,
  projectId: string,
  query: ListQuery,
): Promise<SandboxPage> {
  if (query.impossible) return { rows: [], nextCursor: null };
  const range = query.idPrefix === null ? undefined : idRange(query.idPrefix);
  // One more than asked for, to know whether there is a next page.
  const found = await queryAll(pool, pageStatement(query.sort, query.order), [
    projectId,
    query.limit + 1,
    query.after?.value ?? null,
    query.idPrefix,
    range?.region ?? null,
    range?.low ?? null,
    range?.high ?? null,
    query.namePrefix,
    query.labels === null ? null : JSON.stringify(query.labels),
    query.states,
    query.snapshots,
    query.regions,
    query.cpu.min,
    query.cpu.max,
    query.memoryGib.min,
    query.memoryGib.max,
    query.diskGib.min,
    query.diskGib.max,
    query.createdAt.min,
    query.createdAt.max,
    query.updatedAt.min,
    query.updatedAt.max,
    query.after?.id ?? null,
  ]);
  const rows = found.slice(0, query.limit);
  const last = found.length > query.limit ? rows.at(-1) : undefined;
  return {
    rows,
    nextCursor: last === undefined ? null : writeCursor(query, { value: last.position, id: last.id }),
  };
}
