import { notFound, quote } from '@releap/contract';
import type { RequestHead, Route, TargetKind } from './target.ts';

/** Asks the kinds in their order; the first one that knows the request has it. */
export function createRouter(kinds: readonly TargetKind[]): (request: RequestHead) => Route {
  return (request) => {
    for (const kind of kinds) {
      const route = kind.route(request);
      if (route !== undefined) return route;
    }
    throw notFound(`no such path: ${quote(request.url.split('?', 1)[0] ?? '')}`);
  };
}
