/** A control plane, a host that follows a script, and a folder with a Dockerfile: started before the tests of the file that imports it. */
import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after } from 'node:test';
import { type Project, startService } from '../world.ts';

export const service = await startService();
// No handler listens: versions stay pending until the tests say what trying them ends with.
service.runner.options.script = (assignment, runner) => {
  runner.deaf.add(assignment.vm_id);
  return service.scripts.script(assignment, runner);
};
export const folder = await mkdtemp(join(tmpdir(), 'rlp-fn-'));
await writeFile(join(folder, 'Dockerfile'), 'FROM busybox\nCOPY main.sh /main.sh\n');
await writeFile(join(folder, 'main.sh'), 'echo hi\n');
after(() => rm(folder, { recursive: true, force: true }));

export const query = async <Row extends object>(text: string, values: unknown[]): Promise<Row[]> =>
  (await service.world.database.pool.query<Row>(text, values)).rows;
/** What trying its first instance ends with. */
export async function tried(
  project: Project,
  name: string,
  version: number,
  state: string,
  error: string | null,
) {
  const changed = await query(
    `update function_versions v set template_state = $4, template_error = $5 from functions f
      where f.id = v.function_id and f.project_id = $1 and f.name = $2 and v.version = $3 returning v.id`,
    [project.projectId, name, version, state, error],
  );
  assert.equal(changed.length, 1);
}
export const versions = async (project: Project, name: string): Promise<Record<string, unknown>[]> =>
  (await project.call('GET', `/fns/${name}/versions`)).body.versions;
