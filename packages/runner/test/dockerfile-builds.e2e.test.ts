/** Real builds in real micro-VMs. Each takes seconds of emulation, so each test looks at all that its builds show. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { newUuid, type DockerfileRoot } from '@releap/contract';
import { isNightly } from '@releap/testing/repetitions';
import { until } from '@releap/testing/eventually';
import { type Item, sha256, tarOf, writeOciLayout } from '@releap/testing/oci';
import { REGISTRY_USER, startRegistry, type TestRegistry } from '@releap/testing/registry';
import { TEST_CACHE } from '@releap/testing/test-cache';
import { prepareCommand } from '../src/dockerfile/build-commands.ts';
import type { OpenBlob } from '../src/dockerfile/build-context.ts';
import type { BuildLimits } from '../src/dockerfile/build-limits.ts';
import type { BuildVm } from '../src/dockerfile/build-vm.ts';
import { runBuild } from '../src/dockerfile/run-build.ts';
import { ImageError } from '../src/image/image-error.ts';
import { DEFAULT_IMAGE_LIMITS } from '../src/image/image-limits.ts';
import { ImageStore, type RootImage } from '../src/image/image-store.ts';
import { Network } from '../src/network/network.ts';
import {
  ensureBuilderImage,
  openDockerfileBuilds,
  packagesDir,
  startBuildVm,
  TEST_LIMITS,
} from './support/dockerfile-builds.ts';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { log, testMachines } from './support/machines.ts';

// With the machine's network, which the namespace of the tests has not.
await ensureBuilderImage();
isolateNetwork(fileURLToPath(import.meta.url));

class World implements AsyncDisposable {
  readonly images: ImageStore;
  readonly registry: TestRegistry;
  readonly caches: string;
  readonly home: string;
  readonly #stack: AsyncDisposableStack;
  readonly #parts: Parameters<typeof openDockerfileBuilds>[1];
  readonly #blobs = new Map<string, Buffer>();
  /** For the next build. */
  limits: Partial<BuildLimits> = {};

  private constructor(
    stack: AsyncDisposableStack,
    registry: TestRegistry,
    machines: Awaited<ReturnType<typeof testMachines>>,
    network: Network,
  ) {
    this.#stack = stack;
    this.registry = registry;
    this.home = machines.home;
    this.caches = path.join(machines.home, 'build-caches');
    const openBlob: OpenBlob = async (digest) =>
      [this.#blobs.get(digest) ?? Buffer.alloc(0)] as unknown as AsyncIterable<Buffer>;
    this.images = new ImageStore({
      privateHosts: ['loopback'],
      cacheDir: TEST_CACHE,
      packagesDir,
      log,
      buildDockerfile: (root, build) =>
        openDockerfileBuilds(this.home, this.#parts, this.limits).build(root, build),
    });
    this.#parts = { machines: machines.machines, network, images: this.images, openBlob };
  }

  static async start(): Promise<World> {
    const stack = new AsyncDisposableStack();
    const folder = await mkdtemp(path.join(tmpdir(), 'releap-dockerfile-'));
    stack.defer(() => rm(folder, { recursive: true, force: true }));
    const registry = stack.use(await startRegistry(path.join(folder, 'registry'), true));
    const layout = path.join(folder, 'busybox');
    await writeOciLayout(layout, [await busyboxLayer(folder)], {
      config: { Env: ['BASE=yes'], Cmd: ['/bin/sh'] },
    });
    registry.push(layout, 'busybox:1');
    const machines = stack.use(await testMachines());
    const network = await Network.open({
      dir: path.join(machines.home, 'network'),
      identity: machines.home,
      listenHost: '127.0.0.1',
      slots: 4,
      withholdMs: 20,
      ahead: 1,
      dnsUpstreams: ['127.0.0.1'],
      log,
    });
    stack.defer(() => network.close());
    const world = new World(stack, registry, machines, network);
    stack.defer(() => world.images.close());
    return world;
  }

  /** Puts a context into the store. */
  async context(items: readonly Item[]): Promise<NonNullable<DockerfileRoot['context']>> {
    const tar = await tarOf(items);
    this.#blobs.set(sha256(tar), tar);
    return { digest: sha256(tar), bytes: tar.length };
  }

  root(text: string, more: Partial<DockerfileRoot> = {}): DockerfileRoot {
    const { username, password } = REGISTRY_USER;
    return {
      type: 'dockerfile',
      project_id: newUuid(),
      dockerfile: { text },
      docker: false,
      credentials: [{ host: this.registry.host, kind: 'basic', username, password }],
      ...more,
    };
  }

  async build(root: DockerfileRoot, signal?: AbortSignal): Promise<{ image: RootImage; output: string }> {
    let output = '';
    const onOutput = (chunk: Buffer): void => void (output += chunk.toString());
    const image = await this.images
      .ensure(root, { rebuild: true, onOutput, signal })
      .catch((error: unknown) => {
        throw Object.assign(error as Error, { output });
      });
    return { image, output };
  }

  /** Why a build fails. */
  async failure(root: DockerfileRoot, signal?: AbortSignal): Promise<string> {
    try {
      await this.build(root, signal);
    } catch (error) {
      return (error as Error).message;
    }
    return assert.fail('the build has not failed');
  }

  /** A micro-VM for builds that fail, each of which would boot one of its own. */
  startVm(): ReturnType<typeof startBuildVm> {
    return startBuildVm(this.home, this.#parts);
  }

  /** Why a build in that micro-VM fails. */
  async failureIn(vm: BuildVm, root: DockerfileRoot): Promise<string> {
    const { signal } = new AbortController();
    await vm.run(prepareCommand(TEST_LIMITS), { signal });
    const error = await runBuild(root, {
      ...this.#parts,
      vm,
      limits: TEST_LIMITS,
      imageLimits: DEFAULT_IMAGE_LIMITS,
      workDir: this.home,
      known: async () => await Promise.resolve(undefined),
      onOutput: () => undefined,
      signal,
    }).then(
      () => assert.fail('the build has not failed'),
      (error: unknown) => error,
    );
    assert.ok(error instanceof ImageError, String(error));
    return error.message;
  }

  vms(): Promise<string[]> {
    return readdir(path.join(this.home, 'vms')).catch(() => []);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#stack.disposeAsync();
  }
}

/** Debian's static busybox with some of its names. */
async function busyboxLayer(folder: string): Promise<Buffer> {
  const deb = (await readdir(packagesDir)).find((name) => name.startsWith('busybox-static_'));
  execFileSync('dpkg-deb', ['--extract', path.join(packagesDir, deb ?? ''), path.join(folder, 'deb')]);
  const found = await readdir(path.join(folder, 'deb'), { recursive: true });
  const program = found.find((name) => /(^|\/)bin\/busybox$/.test(name)) ?? '';
  const names = [
    'sh',
    'cat',
    'echo',
    'ls',
    'mkdir',
    'dd',
    'sleep',
    'test',
    'true',
    'false',
    'grep',
    'id',
    'chmod',
    'rm',
  ];
  return await tarOf([
    ...['bin', 'etc', 'tmp'].map((name): Item => ({ name, type: 'directory', mode: 0o755 })),
    { name: 'bin/busybox', content: await readFile(path.join(folder, 'deb', program)), mode: 0o755 },
    ...names.map((name): Item => ({ name: `bin/${name}`, type: 'symlink', linkname: 'busybox' })),
    { name: 'etc/passwd', content: 'root:x:0:0::/root:/bin/sh\nworker:x:7:7::/:/bin/sh\n' },
    { name: 'etc/group', content: 'root:x:0:\nworker:x:7:\n' },
  ]);
}

function fileOf({ path: image }: RootImage, name: string): string {
  return execFileSync('unsquashfs', ['-cat', image, name], { encoding: 'utf8' });
}

let world: World;
before(async () => {
  world = await World.start();
});
after(() => world[Symbol.asyncDispose]());

describe('a Dockerfile', () => {
  /** One project: its builds have the base image in their cache. */
  const project_id = newUuid();

  it('that takes too much is ended with the limit that it met, or cancelled', async () => {
    const from = `FROM ${world.registry.host}/busybox:1\n`;
    const run = (command: string): DockerfileRoot => world.root(`${from}RUN ${command}\n`, { project_id });
    world.limits = { diskMib: 128 };
    assert.equal(
      await world.failure(run('dd if=/dev/zero of=/full bs=1M')),
      'the build ran out of its 128 MiB disk',
    );
    assert.deepEqual(await world.vms(), []);
    if (isNightly()) {
      // Idle: its time is the host's, and a busy guest would only cost the host as much.
      world.limits = { timeMs: 30_000 };
      assert.equal(await world.failure(run('sleep 1000')), 'the build ran out of its time of 30 seconds');
      world.limits = { processes: 100 };
      const start = 'sleep 1000 > /dev/null 2>&1 &';
      const forks = run(`while :; do ${start} done`);
      assert.match(await world.failure(forks), /^the build had more than 100 processes at a time: RUN while/);
    }
    world.limits = {};

    const controller = new AbortController();
    const failed = world.failure(run('echo begun; sleep 1000'), controller.signal);
    await until(async () => (await world.vms()).length > 0);
    controller.abort(new Error('cancelled'));
    assert.match(await failed, /cancelled/);
    await until(async () => (await world.vms()).length === 0);
  });

  // After one that was cancelled.
  it('becomes a root image, and an unchanged one is built from its layers again', async () => {
    const { host } = world.registry;
    const context = await world.context([
      { name: 'kept.txt', content: 'kept\n' },
      { name: 'ignored.txt', content: 'ignored\n' },
      { name: '.dockerignore', content: 'ignored*\n' },
      {
        name: 'build/Dockerfile',
        content: `ARG TAG=1
FROM ${host}/busybox:$TAG AS made
ARG WORD=default
COPY . /context
RUN --mount=type=cache,target=/cache echo "$WORD $BASE" > /made && echo 1 > /cache/seen && ls -A /context > /list
FROM ${host}/busybox:1
COPY --from=made /made /list /
COPY <<EOF /etc/heredoc
of $HOME
EOF
RUN <<EOF
echo one > /steps
echo two >> /steps
EOF
ENV COLOUR=blue
WORKDIR /srv
USER worker
EXPOSE 80
ENTRYPOINT ["/bin/sh", "-c"]
CMD ["id"]
`,
      },
    ]);
    const root = world.root('', { project_id, context, dockerfile: { path: './build/Dockerfile' } });
    const { image, output } = await world.build(root);
    assert.equal(fileOf(image, 'made'), 'default yes\n');
    assert.equal(fileOf(image, 'list'), '.dockerignore\nbuild\nkept.txt\n');
    assert.match(fileOf(image, 'etc/heredoc'), /^of /);
    assert.equal(fileOf(image, 'steps'), 'one\ntwo\n');
    const { entrypoint, cmd, env, user, workingDir, exposedPorts } = image.config;
    assert.deepEqual([entrypoint, cmd, user, workingDir], [['/bin/sh', '-c'], ['id'], 'worker', '/srv']);
    assert.deepEqual(
      [env['COLOUR'], env['BASE'], exposedPorts],
      ['blue', 'yes', [{ port: 80, proto: 'tcp' }]],
    );
    assert.match(output, new RegExp(`fetching the base image ${host}/busybox:1\n`));
    assert.equal(output.split('AS made').length, 2, output);
    assert.ok(!output.includes(REGISTRY_USER.password));
    assert.deepEqual(await world.vms(), []);

    assert.ok(await world.images.has(root));
    assert.equal((await world.images.ensure(root)).digest, image.digest);
    const again = await world.build(root);
    assert.equal(again.image.digest, image.digest);
    assert.match(again.output, /have not changed/);
    assert.deepEqual(await world.vms(), []);

    const other = await world.build(
      world.root('', { project_id, context, dockerfile: { path: 'build/Dockerfile' } }),
    );
    assert.equal(other.image.digest, image.digest);
    assert.match(other.output, /every step was cached/);
  });

  const nightly = { skip: isNightly() ? false : 'a minute of emulation: only in the nightly run' };
  it('is prepared for Docker with its package manager', nightly, async () => {
    const { host } = world.registry;
    const prepared = (steps: string): DockerfileRoot =>
      world.root(`FROM ${host}/busybox:1\n${steps}`, { project_id, docker: true });
    const manager = (install: string): string => `COPY <<'EOF' /bin/apt-get
#!/bin/sh
echo "$*" >> /log
case "$*" in install*) ${install} ;; esac
EOF
RUN chmod 755 /bin/apt-get && mkdir -p /usr/sbin
USER worker
`;
    const failing = manager('echo "E: Unable to locate package docker.io"; exit 100');
    assert.equal(
      await world.failure(prepared(failing)),
      'docker: true could not install Docker with apt-get: E: Unable to locate package docker.io',
    );
    const installing = manager('echo 1 > /usr/sbin/dockerd');
    const { image, output } = await world.build(prepared(installing));
    assert.match(output, /^\[releap\] installing Docker with apt-get$/m);
    assert.deepEqual([image.config.docker, image.config.user], [true, 'worker']);
    assert.match(fileOf(image, 'log'), /^update\ninstall -y --no-install-recommends docker\.io /);
    assert.deepEqual(await world.vms(), []);
  });

  it('that fails says in one line which step it was, and why', async () => {
    const { host } = world.registry;
    const from = `FROM ${host}/busybox:1\n`;
    await using started = await world.startVm();
    const failure = async (text: string, more: Partial<DockerfileRoot> = {}): Promise<string> =>
      await world.failureIn(started.vm, world.root(text, more));
    assert.equal(
      await failure(`${from}ENV BEFORE=it\nRUN exit 3\n`),
      'RUN exit 3 (line 3) exited with status 3',
    );
    assert.equal(
      await failure(`${from}COPY nothing /there\n`),
      'COPY nothing /there (line 2): no such file in the context',
    );
    assert.equal(await failure(`${from}RUNN true\n`), 'the Dockerfile has an unknown instruction: RUNN');
    assert.match(
      await failure(`FROM scratch\nCOPY --from=${host}/busybox:none / /\n`),
      /^base image localhost:\d+\/busybox:none: .*no image localhost:\d+\/busybox:none/,
    );
    assert.match(
      await failure(from, { credentials: [] }),
      /^base image localhost:\d+\/busybox:1: .*(?:authori|credential|denied)/i,
    );
    const reason = `the project's credential for ${host} cannot be used: it is damaged: write it again`;
    assert.equal(
      await failure(from, { credentials: [], no_credentials: [{ host, reason }] }),
      `base image ${host}/busybox:1: ${reason}`,
    );
    assert.match(
      await failure(from, { docker: true }),
      /^docker: true needs an image with dockerd, or with one of apt-get, apk, dnf/,
    );

    const text = `FROM scratch\nCOPY . /\n`;
    const escaping = await world.context([{ name: '../escaped', content: 'x' }]);
    assert.match(await failure(text, { context: escaping }), /^the build context cannot be unpacked: /);
    const device = await world.context([{ name: 'disk', type: 'block-device', devmajor: 8, devminor: 0 }]);
    assert.equal(
      await failure(text, { context: device }),
      'the build context has a device, FIFO or socket: "/disk"',
    );
  });
});
