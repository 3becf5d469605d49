/** Reports of invocations from hourly sums, beside the same numbers from the log; and what keeping the sums costs. */
import { newUuid } from '@releap/contract';
import type { Database } from '@releap/database';
import { mergeHours } from '../../packages/control/src/functions/invocations/hours.ts';
import {
  readFunctionReport,
  readSeries,
  reportRange,
} from '../../packages/control/src/functions/invocations/reports.ts';
import {
  recordFinished,
  type FinishedInvocation,
} from '../../packages/control/src/functions/invocations/store.ts';
import { DEFAULT_PRICES } from '../../packages/control/src/tenancy/billing/prices.ts';

const HOUR_MS = 3_600_000;
const FUNCTIONS = 10;
export const INVOCATIONS = 500_000;
const DAYS = 28;

export interface Called {
  projectId: string;
  functions: { id: string; versionId: string }[];
}

/** Ten functions of the first project, and their invocations of four weeks. */
export async function writeInvocations({ pool }: Database): Promise<Called> {
  const projectId = (await pool.query<{ id: string }>('select id from projects limit 1')).rows[0]?.id ?? '';
  const functions: Called['functions'] = [];
  for (let at = 0; at < FUNCTIONS; at += 1) {
    const [id, versionId] = [newUuid(), newUuid()];
    await pool.query(
      `insert into functions (id, project_id, name, region, latest_version, current_version) values ($1, $2, $3, 'local', 1, 1)`,
      [id, projectId, `f-${at}`],
    );
    await pool.query(
      `insert into function_versions (id, function_id, project_id, version, image_ref, root, handler, port, vcpus, mem_mib, scratch_mib, env,
         snapshot_kind, timeout_s, scaledown_window_s, max_concurrency, template_state)
       values ($1, $2, $3, 1, 'busybox', '{}', '[]', 8080, 1, 512, 512, '{}', 'pre_entrypoint', 300, 60, 1, 'published')`,
      [versionId, id, projectId],
    );
    functions.push({ id, versionId });
  }
  await pool.query(
    `select make_usage_partition('invocations', day, day + 1)
       from (select (now() at time zone 'utc')::date - back as day from generate_series(0, ${DAYS}) back) d`,
  );
  await pool.query(
    `insert into invocations (id, queued_at, project_id, function_id, version_id, version, source, status, attempt, started_at, finished_at,
                              duration_ms, cold, billed)
     select gen_random_uuid(), now() - n * interval '1 day' * ${DAYS} / ${INVOCATIONS}, $1, ($2::uuid[])[1 + n % ${FUNCTIONS}],
            ($3::uuid[])[1 + n % ${FUNCTIONS}], 1, 'invoke', 'succeeded', 1, now(), now(), 5 + exp(random() * 8), n % 50 = 0, 1000
       from generate_series(1, ${INVOCATIONS}) n`,
    [projectId, functions.map(({ id }) => id), functions.map(({ versionId }) => versionId)],
  );
  await mergeHours(pool);
  await pool.query('vacuum analyze');
  return { projectId, functions };
}

/** Milliseconds. */
async function timed(work: () => Promise<unknown>): Promise<number> {
  const begin = performance.now();
  await work();
  return performance.now() - begin;
}

const range = () =>
  reportRange({ from: new Date(Date.now() - DAYS * 24 * HOUR_MS), to: new Date() }, true, 30);

export const reportNow = ({ pool }: Database, { projectId }: Called): Promise<number> =>
  timed(() => readFunctionReport(pool, projectId, range(), null));
export const seriesNow = ({ pool }: Database, { functions }: Called): Promise<number> =>
  timed(() => readSeries(pool, functions[0]?.id ?? '', 'h', range()));

/** As before: everything of the log in the range. */
export const reportBefore = ({ pool }: Database, { projectId }: Called): Promise<number> =>
  timed(() =>
    pool.query(
      `select function_id, count(*), count(*) filter (where status = 'succeeded'), count(*) filter (where status = 'failed'),
              count(*) filter (where cold), sum(duration_ms::numeric) / count(duration_ms),
              percentile_cont(0.5) within group (order by duration_ms), percentile_cont(0.95) within group (order by duration_ms),
              percentile_cont(0.99) within group (order by duration_ms), sum(billed)
         from invocations where project_id = $1 and queued_at >= $2 and queued_at < $3 group by 1`,
      [projectId, range().from, range().to],
    ),
  );
export const seriesBefore = ({ pool }: Database, { functions }: Called): Promise<number> =>
  timed(() =>
    pool.query(
      `select date_bin('1 hour', queued_at, 'epoch'), count(*), count(*) filter (where status = 'succeeded'), count(*) filter (where cold),
              sum(duration_ms::numeric) / count(duration_ms)
         from invocations where function_id = $1 and queued_at >= $2 and queued_at < $3 group by 1 order by 1`,
      [functions[0]?.id, range().from, range().to],
    ),
  );

/** Records a thousand, a hundred a statement, of all functions. */
export async function record({ pool }: Database, { functions }: Called): Promise<void> {
  for (let batch = 0; batch < 10; batch += 1)
    await recordFinished(
      pool,
      DEFAULT_PRICES,
      Array.from({ length: 100 }, (_, at): FinishedInvocation => {
        const { id, versionId } = functions[at % functions.length] ?? { id: '', versionId: '' };
        return {
          id: newUuid(),
          queuedAt: new Date(),
          functionId: id,
          versionId,
          version: 1,
          source: 'invoke',
          status: 'succeeded',
          attempt: null,
          startedAt: new Date(),
          finishedAt: new Date(),
          durationMs: 5 + Math.random() * 50,
          cold: false,
          error: null,
          result: null,
        };
      }),
    );
}
