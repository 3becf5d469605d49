/** New versions of functions are tried before they serve. */
import assert from 'node:assert/strict';
import { beforeEach, it } from 'node:test';
import { newUuid, type FunctionVersionRecord } from '@releap/contract';
import { GatewayClient, type GatewayAnswer } from '@releap/testing/gateway-client';
import { obedient, startWorld, until, type Script } from '@releap/testing/world';
import { newOrg } from './support/billing.ts';
import { insertFunction, insertVersion } from './support/function-versions.ts';

let script: Script = obedient;
let functions = 0;

// Leases are the usual ones: shorter ones run out on a busy machine, and the instance is tried again.
const world = await startWorld({ limits: { functionListenMs: 500 } });
const runner = await world.runner({
  script: (assignment, self) => script(assignment, self),
});
/** Another service, which does not wait for instances to end. */
const hasty = await startWorld({ limits: { functionFullMs: 0 } });
await hasty.runner({ script: obedient });
beforeEach(() => {
  script = obedient;
});

/** The handler of each new instance does not listen. */
const deaf: Script = (assignment, self) => {
  self.deaf.add(assignment.vm_id);
  return obedient(assignment, self);
};
async function deploy(name = `f${++functions}`, body: object = {}): Promise<string> {
  const answer = await world.call('POST', '/fns', {
    name,
    image: { type: 'named', name: 'busybox' },
    ...body,
  });
  assert.equal(answer.status, 200, answer.text);
  return name;
}
async function versions(name: string): Promise<FunctionVersionRecord[]> {
  return (await world.call('GET', `/fns/${name}/versions`)).body.versions as FunctionVersionRecord[];
}
const current = async (name: string): Promise<number | undefined> =>
  (await world.call('GET', `/fns/${name}`)).body.current_version?.version;
async function tried(name: string): Promise<FunctionVersionRecord> {
  await until(async () => (await versions(name))[0]?.template_state !== 'pending');
  return (await versions(name))[0] as FunctionVersionRecord;
}
/** Sandboxes on which versions of the function are or were tried. */
async function attempts(name: string): Promise<{ id: string; status: string }[]> {
  const { rows } = await world.database.pool.query<{ id: string; status: string }>(
    `select s.id, s.status from functions f join function_instances i on i.function_id = f.id join sandboxes s on s.id = i.sandbox_id
      where f.name = $1 and i.purpose = 'probe' order by i.created_at`,
    [name],
  );
  return rows;
}
/** What a gateway gets for the version, once it was tried: it asks again while it was not. */
async function outcome(gateway: GatewayClient, target: object): Promise<GatewayAnswer> {
  for (;;) {
    const answer = await gateway.ask(target);
    if (answer.type !== 'refusal' || answer.not_tried_yet !== true) return answer;
  }
}
const withoutId = ({ id: _id, ...rest }: GatewayAnswer): Omit<GatewayAnswer, 'id'> => rest;
const isClean = (name: string) =>
  until(async () => (await attempts(name)).every(({ status }) => status === 'deleted'));

it('a version is published when its handler listens, and the instance is deleted', async () => {
  const name = await deploy();
  const { template_state, template_error } = await tried(name);
  assert.deepEqual([template_state, template_error], ['published', null]);
  await isClean(name);
  assert.equal((await attempts(name)).length, 1);
});

it('a later version with activate when_ready becomes current when it is published, and not when it fails', async () => {
  const name = await deploy();
  await tried(name);
  script = deaf;
  await deploy(name, { activate: 'when_ready' });
  assert.equal(await current(name), 1);
  const failed = await tried(name);
  assert.equal(failed.template_state, 'failed');
  assert.match(failed.template_error ?? '', /^nothing listened on port 8080 within 0\.5 s/);
  assert.equal(await current(name), 1);
  script = obedient;
  await deploy(name, { activate: 'when_ready' });
  assert.equal((await tried(name)).template_state, 'published');
  assert.equal(await current(name), 3);
  await isClean(name);
});

it('says how the handler ended, with its last lines, and why an instance failed', async () => {
  script = (assignment, self) => {
    const { vm_id: id } = assignment;
    self.logs.set(`/vms/${id}/entrypoint`, (_request, response) => {
      response.end(JSON.stringify({ state: 'exited', exit_code: 3 }));
    });
    self.logs.set(`/vms/${id}/logs/entrypoint`, (_request, response) => {
      response.end(`starting\n\u001b[31mno module named flask\u0000\n`);
    });
    return deaf(assignment, self);
  };
  const ended = await deploy(undefined, { port: 9_000 });
  assert.equal(
    (await tried(ended)).template_error,
    'the handler ended with status 3 before it listened on port 9000; its last output:\nstarting\n [31mno module named flask',
  );
  script = (assignment, self) => {
    if (assignment.desired !== 'running') return obedient(assignment, self);
    self.observe(assignment, { status: 'failed', error: 'image "x" was not found in its registry' });
  };
  const failed = await deploy();
  assert.equal(
    (await tried(failed)).template_error,
    'its first instance failed: image "x" was not found in its registry',
  );
  await isClean(failed);
  await isClean(ended);
});

it('requests for an instance wait for the outcome', async () => {
  using gateway = await new GatewayClient(world.internalUrl).open(newUuid());
  const target = async (name: string) => ({
    kind: 'function-instance',
    version_id: (await versions(name))[0]?.id,
  });
  script = deaf;
  const name = await deploy();
  assert.partialDeepStrictEqual(await outcome(gateway, await target(name)), { type: 'refusal', status: 502 });
  script = obedient;
  const good = await deploy();
  assert.equal((await outcome(gateway, await target(good))).type, 'grant');
});

it('says what requests wait for while the outcome takes long', async () => {
  using gateway = await new GatewayClient(world.internalUrl).open(newUuid());
  let goOn: (() => void) | undefined;
  script = (assignment, self) => {
    if (assignment.desired !== 'running') return obedient(assignment, self);
    self.observe(assignment, { status: 'building' });
    goOn = () => void obedient(assignment, self);
  };
  const name = await deploy();
  const target = { kind: 'function-instance', version_id: (await versions(name))[0]?.id };
  await until(async () => (await attempts(name))[0]?.status === 'building');
  assert.deepEqual(withoutId(await gateway.ask(target)), {
    type: 'refusal',
    status: 429,
    error: `version 1 of function "${name}" has not been started yet: the root file system of its image "busybox" is being made, which the first use of an image on a host takes`,
    code: 'overloaded',
    not_tried_yet: true,
  });
  script = obedient;
  goOn?.();
  assert.equal((await outcome(gateway, target)).type, 'grant');
  await isClean(name);
});

/** No instance is taken for a leftover, and no handler fails, while the machine is busy. */
async function restart(functionLeaseMs = 600_000): Promise<void> {
  await world.restart({
    limits: { functionLeaseMs, functionListenMs: 600_000, functionGraceMs: 600_000, sweepMs: 100 },
  });
  await until(() => runner.closeCode !== undefined);
  await runner.connect();
}

it('another server continues with the instance of one that was killed', async () => {
  await restart(1_000);
  script = deaf;
  const name = await deploy();
  await until(async () => (await attempts(name))[0]?.status === 'running');
  script = obedient;
  await restart(1_000);
  runner.deaf.clear();
  assert.equal((await tried(name)).template_state, 'published');
  assert.equal((await attempts(name)).length, 1);
  await isClean(name);
});

it('versions of one organization whose handlers do not listen do not hold up those of others', async () => {
  await restart();
  script = deaf;
  const names: string[] = [];
  for (let count = 0; count < 6; count++) names.push(await deploy());
  const begun = async (): Promise<number> => (await Promise.all(names.map(attempts))).flat().length;
  await until(async () => (await begun()) >= 4);
  script = obedient;
  const { projectId } = await newOrg(world.database);
  const { versionId } = await insertFunction(world, { project: projectId, state: 'pending' });
  await until(async () => {
    const { rows } = await world.database.pool.query(
      'select template_state from function_versions where id = $1',
      [versionId],
    );
    return rows[0]?.template_state === 'published';
  });
  // They would hold all places of the organization, which the next tests use.
  for (const name of names) assert.equal((await world.call('DELETE', `/fns/${name}`)).status, 204);
});

it('a try counts among max_instances: an idle instance ends for it before it starts', async () => {
  using gateway = await new GatewayClient(world.internalUrl).open(newUuid());
  const name = await deploy(undefined, { max_instances: 1 });
  assert.equal((await tried(name)).template_state, 'published');
  const old = await gateway.instance((await versions(name))[0]?.id ?? '');
  await deploy(name, { max_instances: 1 });
  await until(() => gateway.pressed.length > 0);
  assert.equal((await attempts(name)).length, 1, 'the newer version is not tried beside it');
  gateway.release([old.id]);
  assert.equal((await tried(name)).template_state, 'published');
  const { rows } = await world.database.pool.query<{ apart: boolean }>(
    'select (select deleted_at from sandboxes where id = $1) <= (select created_at from sandboxes where id = $2) as apart',
    [old.vm_id, (await attempts(name))[1]?.id],
  );
  assert.deepEqual(rows, [{ apart: true }]);
});

it('a deploy does not wait for ever for an instance that serves a long call', async () => {
  using gateway = await new GatewayClient(hasty.internalUrl).open(newUuid());
  const fn = await insertFunction(hasty, { maxInstances: 1 });
  const busy = await gateway.instance(fn.versionId);
  const newer = await insertVersion(hasty, fn.id, 2, { maxInstances: 1, state: 'pending', current: false });
  await hasty.control.runTask('function-versions');
  await until(async () => {
    const { rows } = await hasty.database.pool.query<{ template_state: string }>(
      'select template_state from function_versions where id = $1',
      [newer],
    );
    return rows[0]?.template_state === 'published';
  });
  gateway.release([busy.id]);
});
