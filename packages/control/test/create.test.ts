import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { randomUUID } from 'node:crypto';
import { inspectSandboxes } from '@releap/testing/inspect';
import { create, REGION, silent, startWorld, until, waitFor } from '@releap/testing/world';
import { DEFAULT_QUOTAS } from '../src/tenancy/quotas/quotas.ts';

const world = await startWorld();
await world.runner();
await world.database.pool.query(`insert into regions (id, name, enabled) values ('closed', 'Closed', false)`);
await world.database.pool.query(
  `insert into global_regions (id, name) values ('europe', 'Europe'), ('empty', 'Empty')`,
);
await world.database.pool.query(
  `insert into regions (id, name, global_region_id) values ('north', 'North', 'europe')`,
);

const post = (body: unknown) => world.call('POST', '/vms', body);

describe('POST /vms', () => {
  it('answers vm_id, job_id, name, status pending and an access token, and the sandbox comes to run', async () => {
    const answer = await post({
      image: 'busybox',
      name: 'mine',
      ports: [{ vm_port: 80 }, { vm_port: 53, proto: 'udp' }],
    });
    assert.equal(answer.status, 200);
    assert.deepEqual(Object.keys(answer.body).sort(), ['access_token', 'job_id', 'name', 'status', 'vm_id']);
    assert.match(answer.body.vm_id, /^here-[a-z2-7]{26}$/);
    assert.match(answer.body.access_token, /^rlpv_[0-9A-Za-z]{43}$/);
    assert.deepEqual([answer.body.name, answer.body.status], ['mine', 'pending']);
    const record = await waitFor(world.call, answer.body.vm_id, 'running');
    assert.deepEqual(record.port_map, [
      { vm_port: 80, proto: 'tcp', host_port: 20_000 },
      { vm_port: 53, proto: 'udp', host_port: 20_001 },
    ]);
    assert.deepEqual(
      [record.image_ref, record.region, record.vm_ip, record.host_ip],
      ['busybox', REGION, '172.16.0.2', '127.0.0.1'],
    );
    const job = await world.call('GET', `/jobs/${answer.body.job_id}`);
    const { created_at, updated_at, ...shown } = job.body;
    assert.ok(Date.parse(created_at) <= Date.parse(updated_at));
    assert.deepEqual(shown, {
      id: answer.body.job_id,
      kind: 'vm.create',
      status: 'done',
      attempts: 1,
      error: null,
      runner_id: record.runner_id,
    });
  });

  it('gives the defaults of the specification: burstable, cpu 0.125, vcpus 2, 1024 MiB, 512 MiB, a generated name', async () => {
    const vm = await create(world.call, world);
    const { body } = await world.call('GET', `/vms/${vm.id}`);
    assert.deepEqual(
      [
        body.mode,
        body.cpu,
        body.vcpus,
        body.mem_mib,
        body.scratch_mib,
        body.persistent,
        body.spot,
        body.spot_evicted_at,
        body.error,
      ],
      ['burstable', 0.125, 2, 1024, 512, false, false, null, null],
    );
    assert.match(body.name, /^sandbox-[0-9a-f]{8}$/);
  });

  it('raises explicit values to the platform minimums, and rounds dedicated cpu up to whole cores', async () => {
    const small = await create(world.call, world, { cpu: 0.01, mem_mib: 1, scratch_mib: 1 });
    const first = (await world.call('GET', `/vms/${small.id}`)).body;
    assert.deepEqual([first.cpu, first.mem_mib, first.scratch_mib], [0.125, 128, 64]);
    const whole = await create(world.call, world, { mode: 'dedicated', cpu: 1.2 });
    assert.equal((await world.call('GET', `/vms/${whole.id}`)).body.cpu, 2);
  });

  it('ignores unknown fields', async () => {
    assert.equal((await post({ image: 'busybox', colour: 'red', __proto__x: 1 })).status, 200);
  });

  it('hands env, ports, policy and the image to the runner as they were given', async () => {
    const runner = await world.runner({ region: 'north', script: silent });
    const body = {
      image: { type: 'registry', ref: 'localhost:5000/app:1' },
      env: { A: 'b', _x: '' },
      ports: [{ vm_port: 8080 }],
      egress_policy: { enabled: true, allow: ['10.0.0.0/8', '*.example.com'] },
      docker_data_mib: 1024,
      persistent: true,
      spot: true,
      region: 'north',
    };
    const vm = await create(world.call, world, body);
    const { spec } = await runner.assigned(vm.uuid);
    assert.deepEqual(spec.env, body.env);
    assert.deepEqual(spec.root, { ...body.image, project_id: world.call.projectId });
    assert.deepEqual(spec.egress, body.egress_policy);
    assert.deepEqual(
      [spec.docker_data_mib, spec.persistent, spec.spot, spec.ports],
      [1024, true, true, [{ vm_port: 8080, proto: 'tcp' }]],
    );
    await runner[Symbol.asyncDispose]();
  });

  it('places a sandbox of a global region in one of its members, and of "world" in any grouped region', async () => {
    await using runner = await world.runner({ region: 'north' });
    for (const region of ['europe', 'world']) {
      const vm = await create(world.call, world, { region });
      assert.match(vm.id, /^north-/);
      assert.equal((await waitFor(world.call, vm.id, 'running')).runner_id, runner.id);
    }
  });
});

const row = (what: string, body: unknown, status: number, message: RegExp): void => {
  it(`POST /vms ${status}: ${what}`, async () => {
    const before = await inspectSandboxes(world.database);
    const answer = await post(body);
    assert.equal(answer.status, status, answer.text);
    assert.match(answer.body.error, message);
    assert.equal((await inspectSandboxes(world.database)).length, before.length, 'nothing was created');
  });
};
const busybox = (extra: object): object => ({ image: 'busybox', ...extra });
const mounts = (n: number): object[] =>
  Array.from({ length: n }, (_, index) => ({ volume: 'v', mount_path: `/data/${index}` }));

describe('POST /vms refuses', () => {
  row('malformed JSON', '{"image":', 400, /must be JSON/);
  row('a body that is no object', [1], 400, /must be a JSON object/);
  row('no image', {}, 400, /image is required/);
  row('image of a wrong type', { image: 7 }, 400, /image must be/);
  row('image source of an unknown type', { image: { type: 'floppy' } }, 400, /image/);
  row('invalid registry reference', { image: 'UPPER/case:!' }, 400, /image/);
  row('invalid mode', busybox({ mode: 'turbo' }), 400, /mode must be one of "burstable", "dedicated".*turbo/);
  row('guarantees over burstable caps (cpu)', busybox({ cpu: 17 }), 400, /at most 16/);
  row('guarantees over burstable caps (memory)', busybox({ mem_mib: 10_000_000 }), 400, /mem_mib/);
  row('guarantees over burstable caps (disk)', busybox({ scratch_mib: 100_000_000 }), 400, /scratch_mib/);
  row('dedicated cpu over cap', busybox({ mode: 'dedicated', cpu: 17 }), 400, /at most 16/);
  row('cpu <= 0', busybox({ cpu: 0 }), 400, /cpu must be a number greater than 0/);
  row('cpu < 0', busybox({ cpu: -1 }), 400, /cpu/);
  row('cpu is text', busybox({ cpu: '1' }), 400, /cpu must be a number/);
  row('mem_mib < 1', busybox({ mem_mib: 0 }), 400, /mem_mib/);
  row('mem_mib is no integer', busybox({ mem_mib: 1.5 }), 400, /mem_mib must be an integer/);
  row('scratch_mib < 1', busybox({ scratch_mib: 0 }), 400, /scratch_mib/);
  row('port out of range', busybox({ ports: [{ vm_port: 65_536 }] }), 400, /ports\[0\]\.vm_port/);
  row('port of an unknown protocol', busybox({ ports: [{ vm_port: 1, proto: 'sctp' }] }), 400, /tcp/);
  row('invalid env name', busybox({ env: { '1A': 'x' } }), 400, /env/);
  row('env value > 64 KiB', busybox({ env: { A: 'x'.repeat(65_537) } }), 400, /env/);
  row('env value of a wrong type', busybox({ env: { A: 1 } }), 400, /env/);
  row('unknown secret', busybox({ secrets: ['NOPE'] }), 400, /secrets/);
  row(
    'invalid mount_path',
    busybox({ volumes: [{ volume: 'v', mount_path: 'relative' }] }),
    400,
    /mount_path/,
  );
  row(
    'mount_path with ..',
    busybox({ volumes: [{ volume: 'v', mount_path: '/a/../b' }] }),
    400,
    /mount_path/,
  );
  row(
    'duplicate mount_path',
    busybox({
      volumes: [
        { volume: 'v', mount_path: '/a' },
        { volume: 'w', mount_path: '/a' },
      ],
    }),
    400,
    /\/a/,
  );
  row(
    'reserved mount_path',
    busybox({ object_store_mounts: [{ object_store: 's', mount_path: '/proc' }] }),
    400,
    /reserved|\/proc/,
  );
  row('more than 8 volumes', busybox({ volumes: mounts(9) }), 400, /8/);
  row(
    'more than 8 object-store mounts',
    busybox({ object_store_mounts: mounts(9).map((m) => ({ ...m, object_store: 's' })) }),
    400,
    /8/,
  );
  row('volume that does not exist', busybox({ volumes: mounts(1) }), 404, /volume ".*" not found/);
  row(
    'object store that does not exist',
    busybox({ object_store_mounts: [{ object_store: 's', mount_path: '/s' }] }),
    404,
    /object store "s" not found/,
  );
  row(
    'mount_path below another',
    busybox({
      object_store_mounts: [
        { object_store: 's', mount_path: '/s' },
        { object_store: 't', mount_path: '/s/t' },
      ],
    }),
    400,
    /is below mount_path "\/s"/,
  );
  row(
    'snapshot named in image does not exist',
    { image: { type: 'snapshot', name: 's' } },
    404,
    /^snapshot "s" not found$/,
  );
  row('unknown region', busybox({ region: 'nowhere' }), 400, /region "nowhere" is unknown: use .*"here"/);
  row('disabled region', busybox({ region: 'closed' }), 400, /region "closed" is disabled/);
  row(
    'global region with no active members',
    busybox({ region: 'empty' }),
    400,
    /"empty" has no active regions/,
  );
  row('invalid cpu_arch', busybox({ cpu_arch: 'sparc' }), 400, /cpu_arch must be one of "amd64", "arm64"/);
  row('unknown cpu_type', busybox({ cpu_type: 'zen9' }), 400, /cpu_type/);
  row('unknown network_class', busybox({ network_class: 'n1' }), 400, /network_class/);
  row('unknown disk_class', busybox({ disk_class: 'd1' }), 400, /disk_class/);
  row(
    'network_class with gpu_host',
    busybox({ network_class: 'n1', gpu_host: 1 }),
    400,
    /network_class cannot be combined with gpu_host/,
  );
  row(
    'disk_class with gpu_host',
    busybox({ disk_class: 'd1', gpu_host: 1 }),
    400,
    /disk_class cannot be combined with gpu_host/,
  );
  row(
    'invalid egress entry',
    busybox({ egress_policy: { enabled: true, allow: ['not a host!'] } }),
    400,
    /egress_policy/,
  );
  row(
    'a named image that does not exist',
    { image: 'nothing-of-that-name' },
    404,
    /image "nothing-of-that-name" not found/,
  );
  row('the same as an object', { image: { type: 'named', name: 'nothing-of-that-name' } }, 404, /not found/);

  it('POST /vms 400: a body over the limit', async () => {
    const answer = await post({ image: 'busybox', name: 'x'.repeat(9 * 1024 * 1024) });
    assert.equal(answer.status, 400, answer.text);
    assert.match(answer.body.error, /too large/);
  });

  it('POST /vms 409: a named image whose build failed', async () => {
    await world.database.pool.query(
      `insert into images (id, project_id, name, source, status, job_id, error)
       values ($1, $2, 'broken', '{"type":"registry","ref":"x/y"}', 'failed', $1, 'no such manifest')`,
      [randomUUID(), world.call.projectId],
    );
    const answer = await post({ image: 'broken' });
    assert.deepEqual([answer.status, /no such manifest/.test(answer.body.error)], [409, true], answer.text);
  });

  it('POST /vms 503: while the database is away, with Retry-After', async () => {
    const { pool } = world.database;
    const blocker = await pool.connect();
    // Reads are not blocked: otherwise the periodic tasks of the server would wait and hold all its connections.
    await blocker.query('begin; lock table sandboxes in share mode');
    try {
      const [answer] = await Promise.all([
        post({ image: 'busybox' }),
        // Let it wait, then break the connections of the server under it.
        until(async () => {
          // Not over the blocker: inside a transaction this view never changes.
          const { rows } = await pool.query(
            `select pid from pg_stat_activity where application_name = 'releap-control' and wait_event_type = 'Lock' and query like '%insert into sandboxes%' and datname = current_database()`,
          );
          if (rows.length === 0) return false;
          await pool.query('select pg_terminate_backend($1)', [rows[0].pid]);
          return true;
        }),
      ]);
      assert.equal(answer.status, 503, answer.text);
      assert.match(answer.body.error, /try again/);
      assert.ok(Number(answer.headers.get('retry-after')) >= 1);
    } finally {
      // Its connection ends: one that PostgreSQL has ended meanwhile cannot be rolled back.
      blocker.release(true);
    }
    await create(world.call, world);
  });
});

describe('POST /vms and the capacity of hosts', () => {
  it('fails a sandbox of an architecture that no host has, with the reason', async () => {
    const vm = await create(world.call, world, { cpu_arch: 'arm64' });
    const record = await waitFor(world.call, vm.id, 'failed');
    assert.match(record.error ?? '', /no host of region "here" has the architecture arm64/);
    const job = (await world.call('GET', `/jobs/${vm.jobId}`)).body;
    assert.deepEqual([job.status, job.error], ['failed', record.error]);
  });

  it('fails a sandbox with GPUs where no host has one, and says so', async () => {
    const vm = await create(world.call, world, { gpu_host: 1 });
    assert.match(
      (await waitFor(world.call, vm.id, 'failed')).error ?? '',
      /no host of region "here" has 1 GPU/,
    );
  });

  it('lets a sandbox wait for capacity up to the deadline, then fails it with the reason', async () => {
    await using tight = await startWorld({
      limits: { overcommit: { cpu: 1, mem: 1, disk: 1, tier: 'spot' } },
    });
    await tight.runner({ facts: { cores: 2 } });
    const first = await create(tight.call, tight, { cpu: 2 });
    await waitFor(tight.call, first.id, 'running');
    const second = await create(tight.call, tight, { cpu: 1 });
    assert.equal((await tight.call('GET', `/vms/${second.id}`)).body.status, 'pending');
    // As if its time were over.
    await tight.database.pool.query('update sandboxes set deadline_at = now() where id = $1', [second.uuid]);
    const failed = await waitFor(tight.call, second.id, 'failed');
    assert.match(failed.error ?? '', /pending for longer than 60 s: no host .* has the capacity for 1 core,/);
    const third = await create(tight.call, tight, { cpu: 1 });
    await tight.call('DELETE', `/vms/${first.id}`);
    await waitFor(tight.call, third.id, 'running');
  });

  it('a sandbox that is larger than any host fails alone; all others are placed', async () => {
    const quotas = { ...DEFAULT_QUOTAS, memory_mib: 2 ** 40 };
    await using open = await startWorld({ limits: { quotas } });
    await open.runner();
    const most = 2_147_483_647;
    const huge = { mode: 'dedicated', mem_mib: most, scratch_mib: most, docker_data_mib: most };
    const vm = await create(open.call, open, huge);
    await waitFor(open.call, (await create(open.call, open)).id, 'running');
    const { error } = await waitFor(open.call, vm.id, 'failed');
    assert.match(
      error ?? '',
      /is large enough for 2 cores, 2147483647 MiB of memory, 4294967294 MiB of disk/,
    );
  });

  it('POST /vms 429: create queue at capacity, with message, retry_after_secs and Retry-After', async () => {
    await using full = await startWorld({ limits: { createQueue: 3, createQueueShare: 3 } });
    for (let i = 0; i < 3; i++) await create(full.call, full);
    const answer = await full.call('POST', '/vms', { image: 'busybox' });
    assert.equal(answer.status, 429, answer.text);
    assert.equal(answer.body.error, answer.body.message);
    assert.equal(answer.body.retry_after_secs, 2);
    assert.equal(answer.headers.get('retry-after'), '2');
    await full.runner();
    await until(async () => (await full.call('GET', '/healthz')).status === 200);
    await until(async () => (await full.call('POST', '/vms', { image: 'busybox' })).status === 200);
  });

  it('POST /vms 429: create queue at capacity, however long an operator lets it be', async () => {
    const createQueue = 1050;
    const overcommit = { cpu: 1, mem: 1, disk: 1, tier: 'spot' } as const;
    await using full = await startWorld({
      limits: { createQueue, createQueueShare: createQueue, overcommit },
    });
    await full.runner({ facts: { cores: 1 } });
    await waitFor(full.call, (await create(full.call, full, { cpu: 1 })).id, 'running');
    const waiting = await create(full.call, full, { cpu: 1 });
    const { rowCount } = await full.database.pool.query(
      `insert into sandboxes select (jsonb_populate_record(s, jsonb_build_object('id', gen_random_uuid()))).*
         from sandboxes s, generate_series(2, $2) where s.id = $1`,
      [waiting.uuid, createQueue],
    );
    assert.equal(rowCount, createQueue - 1);
    // Until the next round it is not known how many wait.
    const post = async () => await full.call('POST', '/vms', { image: 'busybox', cpu: 1 });
    await until(async () => (await post()).status === 429);
    assert.match((await post()).body.error, /^1\d{3} sandboxes are already waiting .* at most 1050/);
  });
});
