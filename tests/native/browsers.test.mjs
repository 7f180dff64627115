// Tests the choice of browsers for the browser tests.
//
//   node --test tests/native/browsers.test.mjs

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { whyTooOld } from '../browser/browsers.mjs';

test('a browser that is too old is left out with the reason', () => {
  assert.equal(whyTooOld('firefox', 'firefox/115.3.0esr'), 'Firefox 115.3.0 is too old: 128 or newer is needed');
  assert.equal(whyTooOld('chromium', 'Chrome/99.0.4844.51'), 'Chromium or Chrome 99.0.4844.51 is too old: 114 or newer is needed');
  assert.equal(whyTooOld('webkit', 'WebKitGTK 2.38.1'), 'WebKitGTK 2.38.1 is too old: 2.40 or newer is needed');
  assert.equal(whyTooOld('firefox', 'firefox/140.5.0esr'), null);
  assert.equal(whyTooOld('webkit', 'WebKitGTK 2.50.6'), null);
  assert.equal(whyTooOld('chromium', 'Chrome/156.0.7000.1'), null);
});
