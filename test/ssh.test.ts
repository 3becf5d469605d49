/** The SSH gateway with the real OpenSSH client, and a real micro-VM. */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import type { SshHostKeys } from '@releap/contract';
import { eventually } from '@releap/testing/eventually';
import { freePort } from '@releap/testing/ports';
import { childrenOf } from '@releap/testing/processes';
import { REPO, type Service } from '@releap/testing/service';
import { sharedService } from '@releap/testing/shared-service';
import { temporaryFolder } from '@releap/testing/temporary-folder';

const RLP = join(REPO, 'packages/cli/bin/rlp');

/** Of a process and of those that it started, and so on; other tests' clients have keys in theirs. */
async function commandLines(pid: number): Promise<string[]> {
  const own = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '');
  const started = await Promise.all((await childrenOf(pid)).map(commandLines));
  return [own, ...started.flat()];
}

interface Ended {
  code: number | null;
  stdout: string;
  stderr: string;
}

describe('SSH, with the OpenSSH client', () => {
  let service: Service;
  let folder: string;
  let vm: { id: string; token: string };
  let where: SshHostKeys;
  /** Options of every client: nothing of the machine's own configuration, and only the gateway's real host key. */
  let options: string[];

  before(async () => {
    folder = await temporaryFolder('releap-ssh-');
    service = await sharedService();
    const answer = await fetch(`${await service.toolboxUrl()}/ssh/host-keys`);
    where = (await answer.json()) as SshHostKeys;
    const known = join(folder, 'known_hosts');
    await writeFile(known, where.host_keys.map((key) => `[127.0.0.1]:${where.port} ${key}\n`).join(''));
    options = [
      '-F',
      'none',
      ...[
        'StrictHostKeyChecking=yes',
        `UserKnownHostsFile=${known}`,
        'GlobalKnownHostsFile=/dev/null',
      ].flatMap((option) => ['-o', option]),
    ];
    vm = await service.create({ persistent: true, name: 'ssh', scratch_size_mib: 128, mem_mib: 256 });
  });
  after(async () => {
    await service?.[Symbol.asyncDispose]();
    await rm(folder, { recursive: true, force: true });
  });

  function run(
    program: string,
    args: readonly string[],
    input: string | Buffer = '',
    env = {},
  ): Promise<Ended> {
    return ended(spawn(program, args, { env: { ...process.env, ...env }, stdio: 'pipe' }), input);
  }

  function ended(child: ChildProcess, input: string | Buffer = ''): Promise<Ended> {
    const out: Buffer[] = [];
    const err: Buffer[] = [];
    child.stdout?.on('data', (chunk: Buffer) => out.push(chunk));
    child.stderr?.on('data', (chunk: Buffer) => err.push(chunk));
    child.stdin?.on('error', () => undefined);
    child.stdin?.end(input);
    const { promise, resolve, reject } = Promise.withResolvers<Ended>();
    child.on('error', reject);
    child.on('close', (code) =>
      resolve({ code, stdout: Buffer.concat(out).toString(), stderr: Buffer.concat(err).toString() }),
    );
    return promise;
  }

  const user = (key = service.bootstrap.api_key): string => `${vm.id}#${key}`;
  const sshArgs = (...rest: string[]): string[] => [
    ...options,
    '-o',
    'BatchMode=yes',
    '-p',
    String(where.port),
    ...rest,
  ];
  const ssh = (command: string, input: string | Buffer = '', ...extra: string[]): Promise<Ended> =>
    run('ssh', sshArgs(...extra, `${user()}@127.0.0.1`, command), input);
  /** scp refuses a `#` in a user name of its own command line. */
  const scp = (...args: string[]): Promise<Ended> =>
    run('scp', [...options, '-o', `User="${user()}"`, '-P', String(where.port), ...args]);

  test('exec: output, input, exit status, signal, environment', async () => {
    assert.deepEqual(await ssh('echo out; echo err >&2; exit 7'), {
      code: 7,
      stdout: 'out\n',
      stderr: 'err\n',
    });
    assert.equal((await ssh('wc -c', Buffer.alloc(300_000, 'x'))).stdout.trim(), '300000');
    // OpenSSH ends with 255 for a signal, and names it when it is asked to.
    const killed = await ssh('kill -TERM $$', '', '-v');
    assert.equal(killed.code, 255);
    assert.match(killed.stderr, /exit-signal/);
    const set = await ssh('echo "$GREETING $USER_LANG"', '', '-o', 'SetEnv=GREETING=hello USER_LANG=de');
    assert.equal(set.stdout, 'hello de\n');
    // The command ends when the client no longer reads its output.
    const line = `ssh ${sshArgs(`'${user()}@127.0.0.1'`, 'yes').join(' ')} | head -1`;
    assert.equal((await run('sh', ['-c', line])).stdout, 'y\n');
    const [many] = await Promise.all([ssh('head -c 5000000 /dev/zero'), ssh('true')]);
    assert.equal(many.stdout.length, 5_000_000);
  });

  test("the sandbox's access token is accepted too, and a key as password", async () => {
    const token = await run('ssh', sshArgs(`${user(vm.token)}@127.0.0.1`, 'echo token'));
    assert.equal(token.stdout, 'token\n', token.stderr);
    const ask = join(folder, 'ask');
    await writeFile(ask, '#!/bin/sh\necho "$SECRET"\n', { mode: 0o755 });
    const env = { SSH_ASKPASS: ask, SSH_ASKPASS_REQUIRE: 'force', SECRET: service.bootstrap.api_key };
    for (const method of ['password', 'keyboard-interactive']) {
      const words = [...options, '-p', String(where.port), '-o', `PreferredAuthentications=${method}`];
      const { stdout, stderr } = await run('ssh', [...words, `${vm.id}@127.0.0.1`, 'echo', method], '', env);
      assert.equal(stdout, `${method}\n`, stderr);
    }
  });

  test('a wrong key is refused as an unknown sandbox is', async () => {
    const other = `${vm.id.slice(0, -4)}aaaa`;
    const wrong = `${service.bootstrap.api_key.slice(0, -4)}aaaa`;
    const answers = await Promise.all(
      [`${vm.id}#${wrong}`, `${other}#${service.bootstrap.api_key}`, `nothing#nothing`].map((name) =>
        run('ssh', sshArgs('-l', name, '127.0.0.1', 'true')),
      ),
    );
    for (const { code, stderr } of answers) {
      assert.equal(code, 255);
      assert.match(stderr, /: Permission denied \(\)\.?\s*$/);
    }
  });

  test('a shell with a terminal: its size, changes of it, and its login name', async () => {
    const shell = spawn('ssh', sshArgs('-tt', `${user()}@127.0.0.1`), {
      env: { ...process.env, TERM: 'vt100' },
    });
    let seen = '';
    shell.stdout.on('data', (chunk: Buffer) => (seen += chunk.toString()));
    const answer = ended(shell, 'echo "$TERM:$USER:$(tty)"; kill -0 $$ && exit 3\n');
    const { code } = await answer;
    assert.match(seen, /^vt100:root:\/dev\/pts\/\d+\r$/m);
    assert.equal(code, 3);
  });

  test('sftp and scp: content, names, permissions, times, a resumed transfer, and folders', async () => {
    const big = randomBytes(3_000_000);
    const name = 'grüße ☃.bin';
    await writeFile(join(folder, name), big, { mode: 0o640 });
    const batch = (lines: string[]): Promise<Ended> =>
      run('sftp', [...options, '-b', '-', '-P', String(where.port), `${user()}@127.0.0.1`], lines.join('\n'));
    const put = await batch([
      'cd /tmp',
      'mkdir böx',
      `put -p "${join(folder, name)}" "böx/${name}"`,
      `chmod 600 "böx/${name}"`,
      `rename "böx/${name}" böx/new`,
      'ls -l böx',
      'ln -s new böx/link',
    ]);
    assert.equal(put.code, 0, put.stderr);
    assert.match(put.stdout, /^-rw-------.* 3000000 .*new$/m);
    const partial = join(folder, 'back');
    await writeFile(partial, big.subarray(0, 1_000_000));
    const got = await batch([`reget /tmp/böx/new ${partial}`]);
    assert.equal(got.code, 0, got.stderr);
    assert.ok((await readFile(partial)).equals(big));

    const tree = join(folder, 'tree');
    await mkdir(join(tree, 'deep'), { recursive: true });
    await writeFile(join(tree, 'deep/run'), '#!/bin/sh\n', { mode: 0o755 });
    const sent = await scp('-p', '-r', tree, '127.0.0.1:/tmp/');
    assert.equal(sent.code, 0, sent.stderr);
    const back = await scp('-r', '127.0.0.1:/tmp/tree/deep', join(folder, 'copy'));
    assert.equal(back.code, 0, back.stderr);
    assert.equal((await stat(join(folder, 'copy/run'))).mode & 0o777, 0o755);
    // The old protocol needs the program of the image.
    const legacy = await scp('-O', join(tree, 'deep/run'), '127.0.0.1:/tmp/');
    assert.notEqual(legacy.code, 0);
    assert.match(legacy.stderr, /has no scp; scp without -O needs none/);
  });

  test('-L to ports of the sandbox and beyond; -R, X11 and the agent are refused', async () => {
    const serve = 'mkdir /tmp/www && echo page > /tmp/www/index.html && httpd -p 127.0.0.1:8080 -h /tmp/www';
    assert.equal((await service.exec(vm.id, serve)).exitCode, 0);
    const [local, closed, beyond] = [await freePort(), await freePort(), await freePort()];
    const guest = (await service.exec(vm.id, 'hostname -i')).result.trim().split(/\s+/)[0] ?? '';
    const tunnel = spawn(
      'ssh',
      sshArgs(
        '-N',
        '-L',
        `${local}:localhost:8080`,
        '-L',
        `${closed}:localhost:9`,
        '-L',
        `${beyond}:${guest}:8080`,
        `${user()}@127.0.0.1`,
      ),
    );
    let complaints = '';
    tunnel.stderr.on('data', (chunk: Buffer) => (complaints += chunk.toString()));
    try {
      const page = await eventually('the page', async () => {
        const answer = await fetch(`http://127.0.0.1:${local}/`).catch(() => undefined);
        return answer?.text();
      });
      assert.equal(page, 'page\n');
      const socket = connect(closed, '127.0.0.1');
      socket.on('error', () => undefined);
      await new Promise((resolve) => socket.once('close', resolve));
      await eventually('a refusal', async () =>
        /open failed: connect failed/.test(complaints) ? true : undefined,
      );
      await assert.rejects(fetch(`http://127.0.0.1:${beyond}/`), 'it listens on the loopback address alone');
    } finally {
      tunnel.kill();
    }
    // Standard input and output as one connection: both ends are passed on.
    assert.equal((await service.exec(vm.id, 'httpd -p 8081 -h /tmp/www')).exitCode, 0);
    for (const to of ['localhost:8080', `${guest}:8081`]) {
      const get = 'GET / HTTP/1.0\r\n\r\n';
      const { stdout, stderr } = await run('ssh', sshArgs('-W', to, `${user()}@127.0.0.1`), get);
      assert.match(stdout, /^HTTP\/1\.[01] 200 OK\r\n[^]*\r\n\r\npage\n$/, stderr);
    }
    const refused = await ssh(
      'true',
      '',
      '-o',
      'ExitOnForwardFailure=yes',
      '-R',
      `${await freePort()}:localhost:1`,
    );
    assert.match(refused.stderr, /remote port forwarding failed/);
    assert.equal(refused.code, 255);
  });

  test('rlp ssh, forward and ssh-config: no key in a command line or in a configuration', async () => {
    const env = { RELEAP_HOME: service.home, XDG_CONFIG_HOME: folder, HOME: folder };
    const start = (...args: string[]): ChildProcess => spawn(RLP, args, { env: { ...process.env, ...env } });
    const shell = await ended(start('ssh', 'ssh', '--', 'echo $((6 * 7)); cat; exit 5'), 'input');
    assert.deepEqual(shell, { code: 5, stdout: '42\ninput', stderr: '' });

    const local = await freePort();
    const tunnel = start('forward', 'ssh', `${local}:8080`);
    try {
      const page = await eventually('the page', async () => {
        const answer = await fetch(`http://127.0.0.1:${local}/`).catch(() => undefined);
        return answer?.text();
      });
      assert.equal(page, 'page\n');
      assert.ok(tunnel.pid !== undefined);
      const words = await commandLines(tunnel.pid);
      assert.ok(words.some((line) => line.includes('ssh-proxy')));
      assert.ok(!words.some((line) => line.includes(service.bootstrap.api_key)));
    } finally {
      tunnel.kill();
    }

    const written = await ended(start('ssh-config', '--write'));
    assert.deepEqual(written, { code: 0, stdout: 'ssh\n', stderr: '' });
    await ended(start('ssh-config', '--write', 'ssh'));
    assert.equal(await readFile(join(folder, '.ssh/config'), 'utf8'), 'Include releap.config\n\n');
    const config = join(folder, '.ssh/releap.config');
    assert.doesNotMatch(await readFile(config, 'utf8'), /rlp_/);
    for (const host of ['ssh', 'ssh.releap']) {
      const { stdout, stderr } = await run(
        'ssh',
        ['-F', config, '-o', 'BatchMode=yes', host, 'echo', host],
        '',
        env,
      );
      assert.equal(stdout, `${host}\n`, stderr);
    }
    const copied = await run('scp', ['-F', config, config, 'ssh:/tmp/config'], '', env);
    assert.equal(copied.code, 0, copied.stderr);
    const none = await run('ssh', ['-F', config, 'none.releap'], '', env);
    assert.match(none.stderr, /no sandbox has the name or id "none"/);
  });

  test('a paused sandbox: said to its owner alone, and the next connection after the resume works', async () => {
    await service.call('POST', `/vms/${vm.id}/pause`);
    await service.waitFor(vm.id, 'paused');
    // Gateways hear of it after those who wait for it at the API.
    await eventually('a refusal that says why', async () => {
      const owner = await ssh('true');
      assert.equal(owner.code, 255);
      assert.match(owner.stderr, /is paused, and must be running/);
      return true;
    });
    const stranger = await run('ssh', sshArgs(`${vm.id}#rlp_x@127.0.0.1`, 'true'));
    assert.doesNotMatch(stranger.stderr, /paused/);
    await service.call('POST', `/vms/${vm.id}/resume`);
    await service.waitFor(vm.id, 'running');
    assert.equal((await ssh('echo again')).stdout, 'again\n');
  });
});
