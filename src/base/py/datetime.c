/* datetime.c - see datetime.h. The calendar is computed here because core makes no time
 * calls, and the years that timegm supports depend on the platform. Days are counted in
 * 400-year eras that begin on 1 March, so that leap days come last. */
#include "base/py/datetime.h"

#include <assert.h>

#define DAY_US 86400000000ll

static int64_t days_from_date(int64_t year, int64_t month, int64_t day)
{
    const int64_t y = month <= 2 ? year - 1 : year;
    const int64_t era = (y >= 0 ? y : y - 399) / 400;
    const int64_t of_era = y - era * 400;
    const int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;

    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

static void date_from_days(int64_t days, int64_t *year, int64_t *month, int64_t *day)
{
    const int64_t z = days + 719468;
    const int64_t era = (z >= 0 ? z : z - 146096) / 146097;
    const int64_t doe = z - era * 146097;
    const int64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    const int64_t doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    const int64_t mp = (5 * doy + 2) / 153;

    *day = doy - (153 * mp + 2) / 5 + 1;
    *month = mp < 10 ? mp + 3 : mp - 9;
    *year = yoe + era * 400 + (*month <= 2);
}

static int64_t days_in_month(int64_t year, int64_t month)
{
    static const uint8_t days[] = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };
    const bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);

    assert(month >= 1 && month <= 12);
    return month == 2 && leap ? 29 : days[month - 1];
}

bool py_datetime_read(const uint8_t b[PYTIME_BYTES], int64_t *us)
{
    const int64_t year = b[0] << 8 | b[1], month = b[2], day = b[3];
    const int64_t micro = b[7] << 16 | b[8] << 8 | b[9];

    if (year < 1 || year > 9999 || month < 1 || month > 12 || day < 1 ||
        day > days_in_month(year, month) || b[4] > 23 || b[5] > 59 || b[6] > 59 ||
        micro > 999999)
        return false;
    *us = days_from_date(year, month, day) * DAY_US +
          ((b[4] * 60ll + b[5]) * 60 + b[6]) * 1000000 + micro;
    return true;
}

void py_datetime_write(uint8_t b[PYTIME_BYTES], int64_t us)
{
    const int64_t t = MIN_OF(MAX_OF(us, PYTIME_MIN_US), PYTIME_MAX_US);
    const int64_t days = (t >= 0 ? t : t - (DAY_US - 1)) / DAY_US;
    const int64_t rest = t - days * DAY_US, second = rest / 1000000;
    const int64_t micro = rest % 1000000;
    int64_t year, month, day;

    date_from_days(days, &year, &month, &day);
    assert(year >= 1 && year <= 9999 && month >= 1 && month <= 12);
    assert(day >= 1 && day <= days_in_month(year, month) && second < 86400);
    b[0] = (uint8_t)(year >> 8);
    b[1] = (uint8_t)year;
    b[2] = (uint8_t)month;
    b[3] = (uint8_t)day;
    b[4] = (uint8_t)(second / 3600);
    b[5] = (uint8_t)(second / 60 % 60);
    b[6] = (uint8_t)(second % 60);
    b[7] = (uint8_t)(micro >> 16);
    b[8] = (uint8_t)(micro >> 8);
    b[9] = (uint8_t)micro;
}
