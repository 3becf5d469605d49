import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, before, describe, test } from 'node:test';
import { type MachineHost, startMachineHost } from '@releap/testing/machine-host';
import { until } from '@releap/testing/world';
import { startRelay, startToolboxRelay } from './relay.ts';
import { json, rlp, rlpHere } from './rlp.ts';
import { but, newProject, type Project, Scripts } from './world.ts';

let host: MachineHost;
const scripts = new Scripts();
before(async () => {
  host = await startMachineHost({ limits: { leaseGraceMs: 0 } }, { script: scripts.script });
});
after(() => host[Symbol.asyncDispose]());

/** All sandboxes of a project that are not deleted, newest first. */
async function sandboxes(project: Project): Promise<{ id: string; name: string; status: string }[]> {
  const { vms } = (await project.call('GET', '/vms')).body as {
    vms: { id: string; name: string; status: string }[];
  };
  return vms;
}

/** A project with a sandbox `web` that runs. */
async function web(): Promise<Project> {
  const project = await newProject(host.world);
  await project.create('web');
  return project;
}

describe('rlp run', () => {
  test('creates, waits, runs the command and ends with its exit code', async () => {
    const project = await newProject(host.world);
    const outcome = await project.rlp(['run', 'busybox', '--', 'sh', '-c', 'echo out; echo err >&2; exit 7']);
    assert.deepEqual(outcome, { code: 7, stdout: 'out\n', stderr: 'err\n' });
    assert.deepEqual(
      (await sandboxes(project)).map(({ status }) => status),
      ['running'],
      'it stays',
    );
  });

  test('of a snapshot: with a command too', async () => {
    const project = await web();
    assert.equal((await project.rlp(['snapshot', 'create', 'web', 'base'])).code, 0);
    const ran = await project.rlp(['run', '--from-snapshot', 'base', '--', 'echo', 'hi']);
    assert.deepEqual(ran, { code: 0, stdout: 'hi\n', stderr: '' });
  });

  test('--rm deletes the sandbox, also when the command failed', async () => {
    const project = await newProject(host.world);
    const { code } = await project.rlp(['run', '--rm', 'busybox', '--', 'false']);
    assert.equal(code, 1);
    await until(async () => (await sandboxes(project)).length === 0);
  });

  test('without a command prints the id once it runs', async () => {
    const project = await newProject(host.world);
    const outcome = await project.rlp(['run', 'busybox', '--name', 'web']);
    assert.equal(outcome.code, 0);
    const [made] = await sandboxes(project);
    assert.deepEqual([made?.name, made?.status, outcome.stdout], ['web', 'running', `${made?.id}\n`]);
  });

  test('options become the body of the create', async () => {
    const project = await newProject(host.world);
    await using relay = await startRelay({ url: project.url });
    const args = [
      'run',
      'busybox',
      '--name',
      'n',
      '--mode',
      'dedicated',
      '--cpu',
      '2',
      '--mem',
      '2g',
      '--scratch',
      '256m',
    ];
    args.push(
      '-e',
      'A=b=c',
      '-e',
      'FROM_HERE',
      '-e',
      'NOT_THERE',
      '-p',
      '80',
      '-p',
      '53/udp',
      '--persistent',
      '--spot',
    );
    args.push('--region', 'here', '--allow', '1.1.1.1', '--docker-data', '1g', '--no-wait');
    const target = { url: relay.url, key: project.key };
    const outcome = await rlpHere(target, args, { env: { FROM_HERE: 'yes' } });
    assert.equal(outcome.code, 0, outcome.stderr);
    assert.deepEqual(JSON.parse(relay.bodies.get('POST /vms') ?? ''), {
      image: 'busybox',
      name: 'n',
      mode: 'dedicated',
      cpu: 2,
      mem_mib: 2048,
      scratch_mib: 256,
      docker_data_mib: 1024,
      env: { A: 'b=c', FROM_HERE: 'yes' },
      ports: [
        { vm_port: 80, proto: 'tcp' },
        { vm_port: 53, proto: 'udp' },
      ],
      egress_policy: { enabled: true, allow: ['1.1.1.1'] },
      persistent: true,
      spot: true,
      region: 'here',
    });
    const { spec } = await host.runner.assigned(project.uuidOf(outcome.stdout.trim()));
    assert.deepEqual([spec.mem_mib, spec.env], [2048, { A: 'b=c', FROM_HERE: 'yes' }]);
  });

  test('a sandbox that fails ends in 125 with the reason, and --rm still deletes it', async () => {
    const project = await newProject(host.world);
    scripts.set(
      'doomed',
      but('running', (assignment, runner) => {
        runner.observe(assignment, { status: 'building' });
        runner.observe(assignment, { status: 'failed', error: 'manifest unknown\u001b[2J' });
      }),
    );
    const outcome = await project.rlp(['run', '--rm', '--name', 'doomed', 'a/b', '--', 'true']);
    assert.equal(outcome.code, 125);
    assert.match(outcome.stderr, /^rlp: sandbox here-\w+ has failed: manifest unknown\?\[2J\n$/);
    assert.deepEqual(await sandboxes(project), []);
  });

  test('waits and tries again while the service is full', async () => {
    const project = await newProject(host.world);
    await using relay = await startRelay({ url: project.url });
    const keys = new Set<unknown>();
    let refusals = 2;
    relay.answers.set('POST /vms', (request, response) => {
      keys.add(request.headers['idempotency-key']);
      if (refusals-- <= 0) return false;
      response.writeHead(429, { 'retry-after': '0.05', 'content-type': 'application/json' });
      return response.end('{"error":"full","message":"full","retry_after_secs":1}');
    });
    const run = ['run', 'busybox', '--', 'true'];
    assert.equal((await rlpHere({ url: relay.url, key: project.key }, run)).code, 0);
    assert.equal(relay.calls.filter((call) => call === 'POST /vms').length, 3);
    assert.deepEqual([keys.size, keys.has(undefined)], [1, false], 'they are one request');
  });

  test('prints the error of the service when it refuses the create', async () => {
    const project = await newProject(host.world);
    const refused = await project.rlp(['run', 'a b', '--', 'true']);
    assert.deepEqual([refused.code, refused.stdout], [125, '']);
    assert.match(refused.stderr, /^rlp: .*"a b".*\n$/);
    assert.equal((await project.rlp(['run', 'a b'])).code, 1);
  });

  test('--json gives one document with both streams and the code', async () => {
    const project = await newProject(host.world);
    const outcome = await project.rlp([
      'run',
      '--json',
      'busybox',
      '--',
      'sh',
      '-c',
      'echo a; echo b >&2; exit 3',
    ]);
    assert.equal(outcome.code, 3);
    const { exit_code, stdout, stderr, vm_id, access_token } = json(outcome);
    assert.deepEqual({ exit_code, stdout, stderr }, { exit_code: 3, stdout: 'a\n', stderr: 'b\n' });
    assert.equal(vm_id, (await sandboxes(project))[0]?.id);
    assert.match(String(access_token), /^rlpv_/);
  });

  test('a wrong option is refused before anything is created', async () => {
    const project = await newProject(host.world);
    await using relay = await startRelay({ url: project.url });
    const wrong = [
      ['--mem', 'lots'],
      ['--cpu', '-1'],
      ['-p', '0'],
      ['-p', '8080:80'],
      ['-e', '1A=b'],
      ['--mode', 'turbo'],
      ['--rm'],
      ['-t'],
      ['--bogus'],
    ];
    for (const args of wrong) {
      const outcome = await rlpHere({ url: relay.url, key: project.key }, ['run', 'busybox', ...args]);
      assert.equal(outcome.code, 2, `${args.join(' ')}: ${outcome.stderr}`);
      assert.match(outcome.stderr, /^rlp: .+\n$/);
    }
    assert.deepEqual(relay.calls, []);
  });

  test('Ctrl-C while it waits ends in 130, and with --rm deletes the sandbox', async () => {
    const project = await newProject(host.world);
    scripts.set(
      'endless',
      but('running', (assignment, runner) => runner.observe(assignment, { status: 'building' })),
    );
    const outcome = await rlp(project, ['run', '--rm', '--name', 'endless', 'busybox', '--', 'true'], {
      started: (child) => {
        void until(async () => (await sandboxes(project))[0]?.status === 'building').then(() =>
          child.kill('SIGINT'),
        );
      },
    });
    assert.equal(outcome.code, 130, outcome.stderr);
    await until(async () => (await sandboxes(project)).length === 0);
  });

  test('killed with --rm, the lease of the sandbox ends it', async () => {
    const project = await newProject(host.world);
    await rlp(project, ['run', '--rm', 'busybox', '--', 'sleep', '600'], {
      started: (child) => {
        void until(async () => (await sandboxes(project))[0]?.status === 'running').then(() =>
          child.kill('SIGKILL'),
        );
      },
    });
    const [left] = await sandboxes(project);
    assert.equal(left?.status, 'running');
    const expired = await host.world.database.pool.query(
      `update sandbox_leases set expires_at = now() where sandbox_id = $1 and expires_at < now() + interval '180 seconds'`,
      [project.uuidOf(left.id)],
    );
    assert.equal(expired.rowCount, 1);
    await until(async () => (await sandboxes(project)).length === 0);
  });
});

describe('rlp exec', () => {
  test('finds the sandbox by name, by id, by UUID and by the beginning of its id', async () => {
    const project = await newProject(host.world);
    for (const name of ['a', 'b', 'c']) await project.create(name);
    const { id } = await project.create('web');
    const random = id.slice('here-'.length);
    for (const vm of ['web', id, id.slice(0, 20), random.slice(0, 12)]) {
      const outcome = await project.rlp(['exec', vm, '--', 'echo', 'hi']);
      assert.deepEqual(outcome, { code: 0, stdout: 'hi\n', stderr: '' }, vm);
    }
  });

  test('an unknown or ambiguous name is reported with the existing ones', async () => {
    const project = await newProject(host.world);
    const [one, two] = [await project.create('web'), await project.create('web')];
    const twice = await project.rlp(['exec', 'web', '--', 'true']);
    assert.equal(twice.code, 2);
    assert.ok(twice.stderr.includes(one.id) && twice.stderr.includes(two.id));
    const none = await project.rlp(['exec', 'nobody', '--', 'true']);
    assert.equal(none.code, 125);
    assert.match(none.stderr, /"nobody"/);
  });

  test('a deleted sandbox does not prevent a new one of its name', async () => {
    const project = await web();
    assert.equal((await project.rlp(['rm', '--wait', 'web'])).code, 0);
    await project.create('web');
    assert.equal((await project.rlp(['exec', 'web', '--', 'true'])).code, 0);
  });

  test('passes stdin on from a pipe and ends it', async () => {
    const project = await web();
    const input = randomBytes(3_000_000).toString('base64');
    const outcome = await rlp(project, ['exec', 'web', '--', 'cat'], { input });
    assert.equal(outcome.code, 0);
    assert.equal(outcome.stdout.length, input.length);
    assert.ok(outcome.stdout === input);
  });

  test('--no-stdin gives the command an empty stdin', async () => {
    const project = await web();
    const outcome = await project.rlp(['exec', '-n', 'web', '--', 'cat'], { input: 'ignored' });
    assert.deepEqual(outcome, { code: 0, stdout: '', stderr: '' });
  });

  test('a command that ends without reading its stdin ends rlp, though the stdin of rlp stays open', async () => {
    const project = await web();
    assert.equal((await rlp(project, ['exec', 'web', '--', 'true'])).code, 0);
  });

  test('much output through a slow reader arrives whole', async () => {
    const project = await web();
    const outcome = await rlp(project, ['exec', 'web', '--', 'head', '-c', '5000000', '/dev/zero'], {
      started: (child) => {
        child.stdout?.pause();
        setTimeout(() => child.stdout?.resume(), 300);
      },
    });
    assert.equal(outcome.stdout.length, 5_000_000);
  });

  test('environment, folder and user are asked for', async () => {
    const project = await web();
    const args = ['exec', '-e', 'A=b', '-w', '/tmp', '-u', 'nobody', '--timeout', '1m', 'web', '--'];
    const outcome = await project.rlp([...args, 'sh', '-c', 'echo $A; pwd; id -un']);
    assert.deepEqual(outcome, { code: 0, stdout: 'b\n/tmp\nnobody\n', stderr: '' });
  });

  test('a command that exceeds its timeout ends in 124', async () => {
    const project = await web();
    assert.equal((await project.rlp(['exec', '--timeout', '300ms', 'web', '--', 'sleep', '60'])).code, 124);
  });

  test('a command that cannot start is reported, with the exit code of a shell', async () => {
    const project = await web();
    const outcome = await project.rlp(['exec', 'web', '--', '/no/such/command']);
    assert.equal(outcome.code, 127);
    assert.match(outcome.stderr, /\/no\/such\/command/);
  });

  test('Ctrl-C is passed on to the command', async () => {
    const project = await web();
    const script = 'trap "echo caught; exit 5" INT; echo ready; while :; do sleep 0.1; done';
    const outcome = await rlp(project, ['exec', '-n', 'web', '--', 'sh', '-c', script], {
      started: (child) => child.stdout?.once('data', () => child.kill('SIGINT')),
    });
    assert.equal(outcome.code, 5, outcome.stderr);
    assert.equal(outcome.stdout, 'ready\ncaught\n');
  });

  test('prints the error of the service for a sandbox that does not run', async () => {
    const project = await newProject(host.world);
    const { id } = await project.create('web', { persistent: true });
    assert.equal((await project.rlp(['pause', 'web'])).code, 0);
    const outcome = await project.rlp(['exec', 'web', '--', 'true']);
    assert.deepEqual(outcome, {
      code: 125,
      stdout: '',
      stderr: `rlp: sandbox "${id}" is paused, and must be running\n`,
    });
  });

  test('without a web socket the one-answer form is used, with words quoted', async () => {
    const project = await web();
    await using relay = await startToolboxRelay(project);
    const target = { url: relay.url, key: project.key };
    const outcome = await rlpHere(target, [
      'exec',
      '-n',
      'web',
      '--',
      'printf',
      '%s|',
      "it's",
      '$HOME',
      'a b',
    ]);
    assert.deepEqual(outcome, { code: 0, stdout: "it's|$HOME|a b|", stderr: '' });
    const refused = await rlpHere(target, ['exec', 'web', '--', 'cat'], { input: 'x' });
    assert.equal(refused.code, 125);
    assert.match(refused.stderr, /--no-stdin/);
  });

  test('a connection that breaks in the middle is reported', async () => {
    await using doomed = await startMachineHost();
    const project = await newProject(doomed.world);
    await project.create('web');
    const command = ['exec', '-n', 'web', '--', 'sh', '-c', 'echo on; exec sleep 60'];
    const outcome = await project.rlp(command, { onStdout: () => void doomed.gateway.close() });
    assert.equal(outcome.code, 125);
    assert.match(outcome.stderr, /ended before the command did/);
  });

  test('arguments of the command that look like options need --, and the error says so', async () => {
    const project = await newProject(host.world);
    const outcome = await project.rlp(['exec', 'web', 'ls', '-la']);
    assert.equal(outcome.code, 2);
    assert.match(outcome.stderr, /after --/);
  });
});
