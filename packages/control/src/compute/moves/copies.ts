/** What hosts report of the copies that moves assign to them (sandboxes/copies.ts). */
import type { SandboxReport } from '@releap/contract/runner';
import { queryAll, statement, type Database } from '@releap/database';
import { readReason } from '../../fleet/runners/read-reason.ts';

/**
 * What a host reports of its copy. $1 host, $2 sandboxes, $3 generations, $4 whether the copy is complete, $5 whether it is removed, $6 why
 * it cannot be used, or null
 */
const OBSERVE = statement<{ id: string }>(
  'sandbox-move-observe',
  `update sandbox_moves m set
     arrived_at = case when t.arrived and m.status = 'placing' then coalesce(m.arrived_at, now()) else m.arrived_at end,
     copy_on = case when t.removed then null else m.copy_on end,
     error = case when m.status = 'placing' then t.refused else m.error end, updated_at = now()
    from unnest($2::uuid[], $3::integer[], $4::boolean[], $5::boolean[], $6::text[]) as t(sandbox_id, generation, arrived, removed, refused)
   where m.copy_on = $1 and m.sandbox_id = t.sandbox_id and m.generation = t.generation
     and (t.arrived or t.removed or t.refused is not null)
   returning m.id`,
);

/** @returns whether a move has got on */
export async function observeCopies(
  { pool }: Database,
  runnerId: string,
  reports: readonly SandboxReport[],
): Promise<boolean> {
  if (reports.length === 0) return false;
  const seen = reports.map((report) => ({ ...report, ...judge(report) }));
  const rows = await queryAll(pool, OBSERVE, [
    runnerId,
    seen.map(({ id }) => id),
    seen.map(({ generation }) => generation),
    seen.map(({ arrived }) => arrived ?? false),
    seen.map(({ removed }) => removed ?? false),
    seen.map(({ refused }) => refused ?? null),
  ]);
  return rows.length > 0;
}

function judge({ status, detail }: SandboxReport): {
  arrived?: boolean;
  removed?: boolean;
  refused?: string;
} {
  const { error, manifest_name: manifest, memory_blocked: blocked } = detail;
  switch (status) {
    case 'stopped':
    case 'paused':
      // Only a complete copy has one.
      if (manifest === undefined) return { refused: readReason(error) ?? 'its new host has no disk of it' };
      return blocked === undefined
        ? { arrived: true }
        : { refused: readReason(blocked) ?? 'its memory is blocked' };
    case 'deleted':
      return { removed: true };
    case 'failed':
    case 'unsupported':
      return { refused: readReason(error) ?? 'its new host gave no reason' };
    default:
      return {};
  }
}
