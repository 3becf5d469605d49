/** Templates of versions with `fn_ready`: on the host that has captured one, and on others. */
import assert from 'node:assert/strict';
import { afterEach, beforeEach, it } from 'node:test';
import { isDeepStrictEqual } from 'node:util';
import { newUuid, type FunctionVersionRecord } from '@releap/contract';
import { GatewayClient } from '@releap/testing/gateway-client';
import {
  FACTS,
  obedient,
  startWorld,
  takesSnapshots,
  until,
  type Script,
  type ScriptedRunner,
} from '@releap/testing/world';

let script: Script = obedient;
let snapshot = takesSnapshots;
let gateway: GatewayClient;
let functions = 0;

const world = await startWorld();
const home = await host();
beforeEach(async () => {
  gateway = await new GatewayClient(world.internalUrl).open(newUuid());
});
afterEach(() => {
  gateway[Symbol.dispose]();
  [script, snapshot] = [obedient, takesSnapshots];
});

function host(facts: ScriptedRunner['options']['facts'] = {}): Promise<ScriptedRunner> {
  return world.runner({
    facts,
    script: (assignment, self) => script(assignment, self),
    snapshot: (assignment, self) => snapshot(assignment, self),
  });
}
async function drain({ id }: ScriptedRunner, drained = true): Promise<void> {
  await world.database.pool.query(
    `update runners set draining_since = case when $2 then now() end where id = $1`,
    [id, drained],
  );
}
/** Another host, the only one that takes instances until the callback ends. */
async function onAnother(
  facts: ScriptedRunner['options']['facts'],
  use: (other: ScriptedRunner) => Promise<void>,
): Promise<void> {
  const other = await host(facts);
  await drain(home);
  try {
    await use(other);
  } finally {
    await drain(home, false);
    await drain(other);
  }
}

async function deploy(name = `f${++functions}`): Promise<string> {
  const body = { name, image: { type: 'named', name: 'busybox' }, snapshot_kind: 'fn_ready' };
  const answer = await world.call('POST', '/fns', body);
  assert.equal(answer.status, 200, answer.text);
  await until(async () => (await version(name)).template_state !== 'pending');
  return name;
}
async function version(name: string): Promise<FunctionVersionRecord> {
  const { body } = await world.call('GET', `/fns/${name}/versions`);
  return body.versions[0] as FunctionVersionRecord;
}
async function templates(name: string): Promise<{ id: string; runner_id: string }[]> {
  const { rows } = await world.database.pool.query<{ id: string; runner_id: string }>(
    `select k.id, k.runner_id from functions f join function_versions v on v.function_id = f.id join function_templates t on t.version_id = v.id
       join snapshots k on k.id = t.snapshot_id where f.name = $1 and k.status = 'ready' order by t.created_at`,
    [name],
  );
  return rows;
}
const onlyTemplate = async (name: string): Promise<string> => {
  const [template, ...more] = await templates(name);
  assert.ok(template);
  assert.equal(more.length, 0);
  return template.id;
};
/** Starts an instance. @returns its host, and the template that it was restored from; null: none, its handler was started */
async function instance(name: string): Promise<{ host: string; template: string | null }> {
  const { vm_id } = await gateway.instance((await version(name)).id);
  const { rows } = await world.database.pool.query<{ host: string; template: string | null }>(
    'select runner_id as host, parent_snapshot_id as template from sandboxes where id = $1',
    [vm_id],
  );
  assert.ok(rows[0]);
  return rows[0];
}
/** Fails whatever resumes memory, on this host. */
const failsToRestore =
  (on: ScriptedRunner): Script =>
  (assignment, self) =>
    self === on && assignment.desired === 'running' && assignment.start_from === 'memory'
      ? void self.observe(assignment, { status: 'failed', error: 'the memory is torn' })
      : obedient(assignment, self);
/** No capture ends before the callback does: a host that lacks a template makes one at once, in a moment that no test sees. */
async function withoutCaptures(use: () => Promise<void>): Promise<void> {
  const held: (() => void)[] = [];
  snapshot = (assignment, self) => void held.push(() => takesSnapshots(assignment, self));
  try {
    await use();
  } finally {
    snapshot = takesSnapshots;
    for (const take of held) take();
  }
}
const isProbed = async (name: string): Promise<boolean> => {
  const { rowCount } = await world.database.pool.query(
    `select 1 from functions f join function_instances i on i.function_id = f.id join sandboxes s on s.id = i.sandbox_id
      where f.name = $1 and i.purpose = 'probe' and s.status <> 'deleted'`,
    [name],
  );
  return rowCount !== 0;
};

it('instances are restored from a snapshot of one whose handler listened, which tenants do not see', async () => {
  const name = await deploy();
  assert.partialDeepStrictEqual(await version(name), { template_state: 'published', template_error: null });
  const template = await onlyTemplate(name);
  await until(async () => !(await isProbed(name)));
  assert.deepEqual(await instance(name), { host: home.id, template });
  assert.deepEqual((await world.call('GET', '/snapshots')).body.snapshots, []);
  assert.equal((await world.call('GET', `/snapshots/${template}`)).status, 404);
  assert.equal((await world.call('DELETE', `/snapshots/${template}`)).status, 404);
  // A newer version has its own, and the older one's goes.
  await deploy(name);
  await until(async () => {
    await world.control.runTask('function-templates');
    const present = await templates(name);
    return present.length === 1 && present[0]?.id !== template;
  });
  await home.snapshotAssigned(template, ({ desired }) => desired === 'deleted');
});

it('starts the handler where a template cannot be restored, and makes another one', async () => {
  const name = await deploy();
  const torn = await onlyTemplate(name);
  await withoutCaptures(async () => {
    script = failsToRestore(home);
    assert.equal((await instance(name)).template, null);
    script = obedient;
  });
  let another: string | undefined;
  await until(async () => {
    another = (await templates(name))[0]?.id;
    return another !== undefined && another !== torn;
  });
  assert.equal((await instance(name)).template, another);
});

it('makes another one when the machine of its host changes', async () => {
  const name = await deploy();
  const before = await onlyTemplate(name);
  await instance(name);
  /** The host has restarted on another machine. */
  const restarted = async (facts: ScriptedRunner['options']['facts']): Promise<void> => {
    home.options.facts = facts;
    await home.connect();
    await until(async () => {
      const { rows } = await world.database.pool.query<{ facts: object }>(
        `select facts from runners where id = $1 and status = 'online' and ready`,
        [home.id],
      );
      return rows.some((row) => isDeepStrictEqual(row.facts, { ...FACTS, ...facts }));
    });
  };
  // Its memory can be restored still, with the kernel of then.
  await withoutCaptures(async () => {
    await restarted({ guest: 'a newer kernel' });
    assert.equal((await instance(name)).template, before);
  });
  let after: string | undefined;
  await until(async () => {
    await world.control.runTask('function-templates');
    const [one, ...more] = await templates(name);
    after = one?.id;
    return more.length === 0 && after !== undefined && after !== before;
  });
  await withoutCaptures(async () => {
    await restarted({ guest: 'a newer kernel', vmm: 'scripted 2' });
    assert.equal((await instance(name)).template, null);
  });
  await until(async () => {
    await world.control.runTask('function-templates');
    const [one] = await templates(name);
    return one !== undefined && one.id !== after;
  });
  assert.equal((await instance(name)).template, await onlyTemplate(name));
  await restarted({});
});

it('is published without a template when none can be made, says why, and tries again', async () => {
  snapshot = (assignment, self) => {
    if (assignment.desired === 'deleted') takesSnapshots(assignment, self);
    else self.observeSnapshot(assignment, { status: 'failed', error: 'the disk is full' });
  };
  const name = await deploy();
  const reason = 'no template was made: the disk is full';
  assert.partialDeepStrictEqual(await version(name), { template_state: 'published', template_error: reason });
  assert.equal((await instance(name)).template, null);
  const failures = async (): Promise<{ attempts: number; minutes: number } | undefined> => {
    const { rows } = await world.database.pool.query<{ attempts: number; minutes: number }>(
      `select attempts, round(extract(epoch from retry_at - now()) / 60)::integer as minutes
         from function_template_failures where version_id = $1 and runner_id = $2`,
      [(await version(name)).id, home.id],
    );
    return rows[0];
  };
  assert.deepEqual(await failures(), { attempts: 1, minutes: 1 });
  const due = (): Promise<unknown> =>
    world.database.pool.query('update function_template_failures set retry_at = now()');
  await due();
  await until(async () => (await failures())?.attempts === 2);
  assert.deepEqual(await failures(), { attempts: 2, minutes: 2 });
  snapshot = takesSnapshots;
  await due();
  await until(async () => (await templates(name)).length === 1);
  await until(async () => (await version(name)).template_error === null);
  assert.equal(await failures(), undefined);
  assert.equal((await instance(name)).template, await onlyTemplate(name));
});

it('another host of the same machine fetches a template once the store has it', async () => {
  const name = await deploy();
  const template = await onlyTemplate(name);
  await onAnother({}, async (other) => {
    // Only the host that captured it has it yet.
    assert.deepEqual(await instance(name), { host: other.id, template: null });
    await home.artifactAssigned(template, ({ desired }) => desired === 'stored');
    await world.database.pool.query('update artifacts set stored_at = now() where id = $1', [template]);
    assert.deepEqual(await instance(name), { host: other.id, template });
    await other.artifactAssigned(template, ({ desired }) => desired === 'present');
    // Instances of the other host have not made it capture one of its own.
    await world.control.runTask('function-versions');
    assert.equal(await onlyTemplate(name), template);
    await world.call('DELETE', `/fns/${name}`);
    await until(async () => {
      await world.control.runTask('function-deletions');
      await world.control.runTask('artifact-garbage');
      return other.artifacts
        .values()
        .some((one) => one.spec.artifact_id === template && one.desired === 'deleted');
    });
  });
});

it('a host with another processor captures its own', async () => {
  const name = await deploy();
  const template = await onlyTemplate(name);
  await world.database.pool.query('update artifacts set stored_at = now() where id = $1', [template]);
  await onAnother({ cpu_model: 'another one' }, async (other) => {
    assert.equal((await instance(name)).template, null);
    await until(async () => (await templates(name)).length === 2);
    const [, own] = await templates(name);
    assert.equal(own?.runner_id, other.id);
    assert.deepEqual(await instance(name), { host: other.id, template: own.id });
  });
  assert.deepEqual(await instance(name), { host: home.id, template });
  // Neither replaces the other.
  await world.control.runTask('function-templates');
  assert.equal((await templates(name)).length, 2);
});

it('a host that fails to restore a fetched one captures its own, and the others keep theirs', async () => {
  const name = await deploy();
  const template = await onlyTemplate(name);
  await onAnother({}, async (other) => {
    await home.artifactAssigned(template, ({ desired }) => desired === 'stored');
    await world.database.pool.query('update artifacts set stored_at = now() where id = $1', [template]);
    await withoutCaptures(async () => {
      script = failsToRestore(other);
      assert.deepEqual(await instance(name), { host: other.id, template: null });
      script = obedient;
    });
    await until(async () => (await templates(name)).length === 2);
    assert.equal((await instance(name)).template, (await templates(name))[1]?.id);
  });
  assert.deepEqual(await instance(name), { host: home.id, template });
});
