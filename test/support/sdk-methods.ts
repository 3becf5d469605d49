/**
 * The public methods of the SDK, out of its own declarations, what becomes of each here, and which file tests it. A file
 * records how the methods that it calls end, and checks at its end that none of its methods was left out.
 */
import assert from 'node:assert/strict';
import { AsyncLocalStorage } from 'node:async_hooks';
import { readdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { basename, join } from 'node:path';
import { isNewestSdk, type Untyped } from '@releap/testing/daytona';
import { REPO } from '@releap/testing/service';

/** Classes, or single methods of classes that another file tests. */
const FILES: Readonly<Record<string, readonly string[]>> = {
  'sdk-sandboxes.test.ts': ['Daytona', 'Sandbox', 'VolumeService'],
  'sdk-snapshots.test.ts': ['SnapshotService', 'Image'],
  'sdk-code.test.ts': ['CodeInterpreter', 'Git', 'Process.codeRun'],
  'sdk-toolbox.test.ts': [
    'Process',
    'PtyHandle',
    'FileSystem',
    'LspServer',
    'ComputerUse',
    'Mouse',
    'Keyboard',
    'Screenshot',
    'Display',
    'RecordingService',
    'Accessibility',
  ],
};

/** `Image` alone calls it, with local files, after what fails with 501. */
const UNREACHABLE = ['ObjectStorage'];

/** Classes whose methods all fail with 501, and single methods. All others work. */
const UNSUPPORTED = new Set([
  'Daytona._experimental_fork',
  'Sandbox._experimental_createSnapshot',
  'Sandbox._experimental_fork',
  'Sandbox.archive',
  'Sandbox.createSshAccess',
  'Sandbox.pause',
  'Sandbox.recover',
  'Sandbox.resize',
  'Sandbox.revokeSshAccess',
  'Sandbox.setAutoArchiveInterval',
  'Sandbox.setAutoDeleteInterval',
  'Sandbox.setAutostopInterval',
  'Sandbox.setLabels',
  'Sandbox.updateNetworkSettings',
  'Sandbox.validateSshAccess',
  'VolumeService',
  'SnapshotService.processImageContext',
  'LspServer',
  'ComputerUse',
  'Mouse',
  'Keyboard',
  'Screenshot',
  'Display',
  'RecordingService',
  'Accessibility',
]);

interface Method {
  /** As in `Git.clone`. */
  name: string;
  key: string;
  /** What has it: the prototype, or the class itself. */
  owner: Untyped;
  expected: 'works' | 'unsupported';
}

const FOLDER = join(REPO, 'build/test-clients/node_modules/@daytonaio/sdk/cjs');
const load = createRequire(join(FOLDER, 'index.js'));

function declaredMethods(): Method[] {
  const methods = new Map<string, Method>();
  for (const file of readdirSync(FOLDER).filter((name) => name.endsWith('.d.ts'))) {
    const text = readFileSync(join(FOLDER, file), 'utf8').replaceAll(/\/\*[^]*?\*\//g, '');
    for (const [, type = '', body = ''] of text.matchAll(/^export declare class (\w+)[^{]*\{\n([^]*?)^\}/gm))
      for (const [, isStatic, key = ''] of body.matchAll(/^ {4}(static )?(\w+)(?:<[^>]*>)?\(/gm)) {
        if (key === 'constructor' || UNREACHABLE.includes(type)) continue;
        const loaded: Untyped = load(`./${file.replace('.d.ts', '.js')}`)[type];
        const name = `${type}.${key}`;
        methods.set(name, {
          name,
          key,
          owner: isStatic === undefined ? loaded.prototype : loaded,
          expected: UNSUPPORTED.has(type) || UNSUPPORTED.has(name) ? 'unsupported' : 'works',
        });
      }
  }
  return [...methods.values()];
}

/** Undefined for a method that no file tests. */
function fileOf({ name }: Method): string | undefined {
  const files = Object.keys(FILES);
  const tests = (entry: string) => (file: string) => FILES[file]?.includes(entry);
  return files.find(tests(name)) ?? files.find(tests(name.split('.', 1)[0] ?? ''));
}

export interface MethodRecord {
  /** @throws for methods of the file that did not end as they should in any test, and for those that no file tests */
  assertComplete(): void;
}

/** Watches the calls of the tests of a file, and not those that the SDK makes inside of them. */
export function recordMethods(path: string): MethodRecord {
  // Its further methods are not of the protocol that the service speaks.
  if (isNewestSdk) return { assertComplete: () => undefined };
  const all = declaredMethods();
  assert.ok(all.length > 150, 'the declarations of the SDK were not read');
  const own = all.filter((method) => fileOf(method) === basename(path));
  const inside = new AsyncLocalStorage<true>();
  const seen = new Map<string, Set<string>>();
  // Also of other files' classes: what they call inside of them is no call of a test.
  for (const { name, key, owner } of all) {
    const outcomes = new Set<string>();
    seen.set(name, outcomes);
    const original = owner[key] as (...args: unknown[]) => unknown;
    owner[key] = function watched(this: unknown, ...args: unknown[]): unknown {
      if (inside.getStore() === true) return original.apply(this, args);
      const result = inside.run(true, () => original.apply(this, args));
      if (result instanceof Promise)
        result.then(
          () => outcomes.add('works'),
          (error: Untyped) => outcomes.add(error.statusCode === 501 ? 'unsupported' : 'fails'),
        );
      else outcomes.add('works');
      return result;
    };
  }
  return {
    assertComplete() {
      const untested = all.filter((method) => fileOf(method) === undefined).map(({ name }) => name);
      assert.deepEqual(untested, [], 'no file tests these methods');
      const wrong = own.flatMap(({ name, expected }) => {
        const outcomes = seen.get(name) ?? new Set();
        const isWrong = !outcomes.has(expected) || (expected === 'unsupported' && outcomes.has('works'));
        return isWrong ? [`${name}: ${[...outcomes].join() || 'not called'}, expected: ${expected}`] : [];
      });
      assert.deepEqual(wrong, []);
    },
  };
}
