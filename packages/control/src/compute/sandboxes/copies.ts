/**
 * The second copy of a sandbox that is moved. Its row names one host. The other one is assigned it by the row of the move: the target as
 * it is, until the row names it, and then the source as deleted. Generations grow over both, so each host obeys the newest.
 */
import { SANDBOX_COLUMNS } from '@releap/database';

const OVERRIDES: Readonly<Record<string, string>> = {
  desired: `case when m.status = 'placing' then s.desired else 'deleted' end`,
  generation: 'm.generation',
  runner_id: 'm.copy_on',
  assigned_to_runner: 'true',
  spec: `s.spec || jsonb_build_object('origin', case when m.status = 'placing' then jsonb_build_object('type', 'snapshot', 'snapshot_id', m.id,
           'kind', case when s.has_memory then 'full' else 'disk' end, 'moved', true) end)`,
};

/** The columns of `SandboxRow` as the other host is assigned them, over `sandbox_moves m` and `sandboxes s`. */
export const COPY_COLUMNS = SANDBOX_COLUMNS.map(
  (name) => `${OVERRIDES[name] ?? `s.${name}`} as ${name}`,
).join(', ');
export const COPIES = 'sandbox_moves m join sandboxes s on s.id = m.sandbox_id';
