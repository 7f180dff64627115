// The worker of a training: answers the page's calls, and reports the progress of a run.

import { load } from 'multihead';
import type { Progress, TrainingCalls } from './training/messages.js';
import { Run } from './training/run.js';
import { serve } from './workers/serve.js';

const report = serve<TrainingCalls, Progress>(load().then((mh) => new Run(mh, (progress) => report(progress))));
