import { COMPAT_PREFIX, UNSUPPORTED_OPERATIONS } from '@releap/contract';
import type { Planes } from '../../platform/http/planes.ts';
import { notSupported } from './errors.ts';

/** Operations that answer 501 with their name. */
export function unsupportedRoutes({ compat }: Planes): void {
  for (const { method, path, name } of UNSUPPORTED_OPERATIONS) {
    compat.operation(
      {
        method,
        path: `${COMPAT_PREFIX}${path}`,
        tag: 'Compatibility',
        security: 'workload',
        summary: name,
        success: { status: 204, response: { description: 'Never.' } },
        errors: { 501: 'Not supported.' },
      },
      () => {
        throw notSupported(name);
      },
    );
  }
}
