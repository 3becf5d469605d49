/** The invocation log of a function. */
import { LIST_CURSORS, type InvocationLogItem } from '@releap/contract';
import { queryAll, statement, type Queryable } from '@releap/database';
import { pagedList, type NextPage, type PageRequest } from '../../platform/paged-list.ts';

interface LogRow extends Omit<InvocationLogItem, 'queued_at' | 'finished_at'> {
  queued_at: Date;
  finished_at: Date | null;
}

const LOG_COLUMNS = 'id, version, status, source, queued_at, finished_at, duration_ms, cold, error';
/** $1 function; each null or: $2 status, $3 version, $4 source, $5 from, $6 to */
const MATCHES = `function_id = $1 and ($2::text is null or status = $2) and ($3::integer is null or version = $3)
      and ($4::text is null or source = $4) and ($5::timestamptz is null or queued_at >= $5)
      and ($6::timestamptz is null or queued_at < $6)`;
/** $7 limit, $8 offset */
const LOG = statement<LogRow>(
  'invocations-log',
  `select ${LOG_COLUMNS} from invocations where ${MATCHES} order by queued_at desc, id desc limit $7 offset $8`,
);
const LOG_PAGES = pagedList<LogRow>('invocations-log', LIST_CURSORS.invocations, {
  columns: LOG_COLUMNS,
  from: 'invocations',
  where: MATCHES,
  parameters: 6,
  keys: [
    { sql: 'queued_at', type: 'timestamptz' },
    { sql: 'id', type: 'uuid' },
  ],
  direction: 'desc',
});

export interface LogPage {
  status: string | null;
  version: number | null;
  source: string | null;
  from: Date | null;
  to: Date | null;
  /** As it is applied. */
  limit: number;
  /** Skips so many, instead of continuing at a cursor. */
  offset: number;
  request: PageRequest;
}

/** One page, newest first. */
export async function readLog(
  on: Queryable,
  functionId: string,
  { status, version, source, from, to, limit, offset, request }: LogPage,
): Promise<{ invocations: InvocationLogItem[] } & NextPage> {
  const values = [functionId, status, version, source, from, to];
  const { rows, next } =
    offset > 0
      ? { rows: await queryAll(on, LOG, [...values, limit, offset]), next: {} }
      : await LOG_PAGES.page(on, values, request, { most: limit, size: () => limit });
  return {
    ...next,
    invocations: rows.map((row) => ({
      ...row,
      queued_at: row.queued_at.toISOString(),
      finished_at: row.finished_at?.toISOString() ?? null,
    })),
  };
}
