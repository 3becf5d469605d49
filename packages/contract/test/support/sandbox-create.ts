import assert from 'node:assert/strict';
import {
  ApiError,
  type PlatformLimits,
  type ResolvedSandbox,
  resolveSandboxCreate,
  SandboxCreateRequest,
  validate,
} from '../../src/index.ts';

export function create(body: Record<string, unknown>, platform?: PlatformLimits): ResolvedSandbox {
  const request = { image: 'busybox', ...body };
  return resolveSandboxCreate(validate(SandboxCreateRequest, 'body', request), platform);
}

export function refused(body: Record<string, unknown>, ...words: (string | RegExp)[]): void {
  assert.throws(
    () => create(body),
    (error: unknown) => {
      assert.ok(error instanceof ApiError, String(error));
      assert.equal(error.status, 400);
      for (const word of words)
        assert.match(error.message, typeof word === 'string' ? new RegExp(escape(word)) : word);
      return true;
    },
    JSON.stringify(body),
  );
}

function escape(text: string): string {
  return text.replaceAll(/[$()*+.?[\\\]^{|}]/g, '\\$&');
}
