import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { describe, test } from 'node:test';
import { json, rlp } from './rlp.ts';
import { send, startService } from './service.ts';

describe('rlp run', () => {
  test('creates, waits, runs the command and ends with its exit code', async () => {
    await using service = await startService();
    const outcome = await rlp(service, [
      'run',
      'busybox',
      '--',
      'sh',
      '-c',
      'echo out; echo err >&2; exit 7',
    ]);
    assert.deepEqual(outcome, { code: 7, stdout: 'out\n', stderr: 'err\n' });
    assert.deepEqual(service.bodies, [{ image: 'busybox' }]);
    assert.ok(!service.calls.some((call) => call.startsWith('DELETE')), 'it stays');
  });

  test('--rm deletes the sandbox, also when the command failed', async () => {
    await using service = await startService();
    const { code } = await rlp(service, ['run', '--rm', 'busybox', '--', 'false']);
    assert.equal(code, 1);
    assert.ok(service.calls.includes(`DELETE /vms/${service.sandboxes[0]?.id}`));
  });

  test('without a command prints the id once it runs', async () => {
    await using service = await startService();
    const outcome = await rlp(service, ['run', 'busybox', '--name', 'web']);
    assert.equal(outcome.code, 0);
    assert.equal(outcome.stdout, `${service.sandboxes[0]?.id}\n`);
    assert.equal(service.sandboxes[0]?.status, 'running');
  });

  test('options become the body of the create', async () => {
    await using service = await startService();
    const args = [
      'run',
      'busybox',
      '--name',
      'n',
      '--mode',
      'dedicated',
      '--cpu',
      '1.5',
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
    args.push('--region', 'local', '--allow', '1.1.1.1', '--docker-data', '1g', '--no-wait');
    const outcome = await rlp(service, args, { env: { FROM_HERE: 'yes' } });
    assert.equal(outcome.code, 0, outcome.stderr);
    assert.deepEqual(service.bodies, [
      {
        image: 'busybox',
        name: 'n',
        mode: 'dedicated',
        cpu: 1.5,
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
        region: 'local',
      },
    ]);
  });

  test('a sandbox that fails ends in 125 with the reason, and --rm still deletes it', async () => {
    await using service = await startService();
    service.coming = ['building', 'failed'];
    const { add } = service;
    service.add = (name, more) => add(name, { ...more, error: 'manifest unknown\u001b[2J' });
    const outcome = await rlp(service, ['run', '--rm', 'a/b', '--', 'true']);
    assert.equal(outcome.code, 125);
    assert.match(outcome.stderr, /^rlp: sandbox local-\w+ has failed: manifest unknown\?\[2J\n$/);
    assert.ok(service.calls.some((call) => call.startsWith('DELETE')));
  });

  test('waits and tries again while the service is full', async () => {
    await using service = await startService();
    const keys = new Set<unknown>();
    let refusals = 2;
    service.special.set('POST /vms', (request, response) => {
      keys.add(request.headers['idempotency-key']);
      if (refusals-- <= 0) return false;
      response.setHeader('retry-after', '0.05');
      return send(response, 429, { error: 'full', message: 'full', retry_after_secs: 1 });
    });
    assert.equal((await rlp(service, ['run', 'busybox', '--', 'true'])).code, 0);
    assert.equal(service.calls.filter((call) => call === 'POST /vms').length, 3);
    assert.deepEqual([keys.size, keys.has(undefined)], [1, false], 'they are one request');
  });

  test('what the service refuses is told in its own words', async () => {
    await using service = await startService();
    service.special.set('POST /vms', (_request, response) =>
      send(response, 400, { error: 'image must be …' }),
    );
    assert.deepEqual(await rlp(service, ['run', 'busybox', '--', 'true']), {
      code: 125,
      stdout: '',
      stderr: 'rlp: image must be …\n',
    });
    assert.equal((await rlp(service, ['run', 'busybox'])).code, 1);
  });

  test('--json gives one document with both streams and the code', async () => {
    await using service = await startService();
    const outcome = await rlp(service, [
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
    assert.equal(vm_id, service.sandboxes[0]?.id);
    assert.equal(access_token, 'rlpv_x');
  });

  test('a wrong option is refused before anything is created', async () => {
    await using service = await startService();
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
      const outcome = await rlp(service, ['run', 'busybox', ...args]);
      assert.equal(outcome.code, 2, `${args.join(' ')}: ${outcome.stderr}`);
      assert.match(outcome.stderr, /^rlp: .+\n$/);
    }
    assert.deepEqual(service.calls, []);
  });

  test('Ctrl-C while it waits ends in 130, and with --rm deletes the sandbox', async () => {
    await using service = await startService();
    service.coming = ['building'];
    const outcome = await rlp(service, ['run', '--rm', 'busybox', '--', 'true'], {
      started: (child) => {
        const timer = setInterval(() => {
          if (service.sandboxes[0]?.status !== 'building') return;
          clearInterval(timer);
          child.kill('SIGINT');
        }, 20);
      },
    });
    assert.equal(outcome.code, 130, outcome.stderr);
    assert.ok(service.calls.some((call) => call.startsWith('DELETE')));
  });
});

describe('rlp exec', () => {
  test('finds the sandbox by name, by id, by UUID and by the beginning of its id', async () => {
    await using service = await startService();
    for (const name of ['a', 'b', 'c']) service.add(name);
    const sandbox = service.add('web');
    const random = sandbox.id.slice('local-'.length);
    for (const vm of ['web', sandbox.id, sandbox.id.slice(0, 20), random.slice(0, 12)]) {
      const outcome = await rlp(service, ['exec', vm, '--', 'echo', 'hi']);
      assert.deepEqual(outcome, { code: 0, stdout: 'hi\n', stderr: '' }, vm);
    }
  });

  test('an unknown or ambiguous name is told with what there is', async () => {
    await using service = await startService();
    const [one, two] = [service.add('web'), service.add('web')];
    const twice = await rlp(service, ['exec', 'web', '--', 'true']);
    assert.equal(twice.code, 2);
    assert.ok(twice.stderr.includes(one.id) && twice.stderr.includes(two.id));
    const none = await rlp(service, ['exec', 'nobody', '--', 'true']);
    assert.equal(none.code, 125);
    assert.match(none.stderr, /"nobody"/);
  });

  test('a deleted sandbox does not stand in the way of a new one of its name', async () => {
    await using service = await startService();
    service.add('web', { status: 'deleted' });
    service.add('web');
    assert.equal((await rlp(service, ['exec', 'web', '--', 'true'])).code, 0);
  });

  test('passes stdin on from a pipe and ends it', async () => {
    await using service = await startService();
    service.add('web');
    const input = randomBytes(3_000_000).toString('base64');
    const outcome = await rlp(service, ['exec', 'web', '--', 'cat'], { input });
    assert.equal(outcome.code, 0);
    assert.equal(outcome.stdout.length, input.length);
    assert.ok(outcome.stdout === input);
  });

  test('--no-stdin gives the command an empty stdin', async () => {
    await using service = await startService();
    service.add('web');
    const outcome = await rlp(service, ['exec', '-n', 'web', '--', 'cat'], { input: 'ignored' });
    assert.deepEqual(outcome, { code: 0, stdout: '', stderr: '' });
  });

  test('a command that ends without reading its stdin ends rlp, though nobody ends our own', async () => {
    await using service = await startService();
    service.add('web');
    assert.equal((await rlp(service, ['exec', 'web', '--', 'true'])).code, 0);
  });

  test('much output through a slow reader arrives whole', async () => {
    await using service = await startService();
    service.add('web');
    const outcome = await rlp(service, ['exec', 'web', '--', 'head', '-c', '5000000', '/dev/zero'], {
      started: (child) => {
        child.stdout?.pause();
        setTimeout(() => child.stdout?.resume(), 300);
      },
    });
    assert.equal(outcome.stdout.length, 5_000_000);
  });

  test('environment, folder, user and timeout are asked for', async () => {
    await using service = await startService();
    service.add('web');
    const args = [
      'exec',
      '-e',
      'A=b',
      '-w',
      '/tmp',
      '-u',
      'nobody',
      '--timeout',
      '1m',
      'web',
      '--',
      'sh',
      '-c',
      'echo $A; pwd',
    ];
    const outcome = await rlp(service, args);
    assert.deepEqual(outcome, { code: 0, stdout: 'b\n/tmp\n', stderr: '' });
    const { argv: _argv, ...start } = service.started[0] ?? { argv: [] };
    assert.deepEqual(start, {
      type: 'start',
      stdin: true,
      env: { A: 'b' },
      cwd: '/tmp',
      user: 'nobody',
      timeout: 60,
    });
  });

  test('a command whose time is over ends in 124', async () => {
    await using service = await startService();
    service.add('web');
    assert.equal((await rlp(service, ['exec', '--timeout', '300ms', 'web', '--', 'sleep', '60'])).code, 124);
  });

  test('a command that cannot start is told, with the code of a shell', async () => {
    await using service = await startService();
    service.add('web');
    const outcome = await rlp(service, ['exec', 'web', '--', '/no/such/command']);
    assert.equal(outcome.code, 127);
    assert.match(outcome.stderr, /\/no\/such\/command/);
  });

  test('Ctrl-C is passed on to the command', async () => {
    await using service = await startService();
    service.add('web');
    const script = 'trap "echo caught; exit 5" INT; echo ready; while :; do sleep 0.1; done';
    const outcome = await rlp(service, ['exec', '-n', 'web', '--', 'sh', '-c', script], {
      started: (child) => child.stdout?.once('data', () => child.kill('SIGINT')),
    });
    assert.equal(outcome.code, 5, outcome.stderr);
    assert.equal(outcome.stdout, 'ready\ncaught\n');
  });

  test('a sandbox that does not run is told in the words of the service', async () => {
    await using service = await startService();
    service.add('web', { status: 'paused' });
    const outcome = await rlp(service, ['exec', 'web', '--', 'true']);
    assert.deepEqual(outcome, { code: 125, stdout: '', stderr: 'rlp: sandbox is paused\n' });
  });

  test('without a web socket the one-answer form is used, with words quoted', async () => {
    await using service = await startService();
    service.add('web');
    service.streams = false;
    const outcome = await rlp(service, ['exec', '-n', 'web', '--', 'printf', '%s|', "it's", '$HOME', 'a b']);
    assert.deepEqual(outcome, { code: 0, stdout: "it's|$HOME|a b|", stderr: '' });
    const refused = await rlp(service, ['exec', 'web', '--', 'cat'], { input: 'x' });
    assert.equal(refused.code, 125);
    assert.match(refused.stderr, /--no-stdin/);
  });

  test('a connection that breaks in the middle is told', async () => {
    await using service = await startService();
    service.add('web');
    const outcome = await rlp(service, ['exec', '-n', 'web', '--', 'sh', '-c', 'echo on; exec sleep 60'], {
      started: (child) => child.stdout?.once('data', () => void service[Symbol.asyncDispose]()),
    });
    assert.equal(outcome.code, 125);
    assert.match(outcome.stderr, /ended before the command did/);
  });

  test('words of the command that look like options need -- and say so', async () => {
    await using service = await startService();
    const outcome = await rlp(service, ['exec', 'web', 'ls', '-la']);
    assert.equal(outcome.code, 2);
    assert.match(outcome.stderr, /after --/);
  });
});
